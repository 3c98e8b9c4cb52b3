# SPDX-License-Identifier: Apache-2.0
"""CPU cgroups of vCPUs and domains, version 1 or 2: where they are, and their files.

A read or write through an open descriptor takes about 1 us; through libvirt it takes 1 to 2 ms. At
every write, even of the same value, the kernel refills a group's bandwidth and forgives its debt,
so only changes are written.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from amp_nova.exceptions import ActuationFailed
from amp_nova.kernel import files
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.cpu_weight import DEFAULT

K = TypeVar("K")
POLL_S = 0.0002
WAIT_MAX_S = 0.11
"""A little more than the longest usual period; longer periods are not waited for."""
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
"""Errors of a write that is not permitted."""
PERIOD_US = 100_000
"""The kernel's default period, which is assumed by anyone who sets only a quota."""
_READ_BYTES = 512
_LIMIT = {1: ("cpu.cfs_quota_us", "cpu.cfs_period_us"), 2: ("cpu.max",)}
"""The files of the limit, by cgroup version."""
_BURST = {1: "cpu.cfs_burst_us", 2: "cpu.max.burst"}
_WEIGHT = {1: "cpu.shares", 2: "cpu.weight"}
_SHARES = 1024
"""The shares of cgroup version 1 that are ``cpu_weight.DEFAULT``."""


class Mount(NamedTuple):
    """A tree of cgroups. ``root``: the group at ``path``; ``others``: more mounts of the tree."""

    path: Path
    root: str = "/"
    others: tuple["Mount", ...] = ()

    def folder(self, group: str) -> str | None:
        """Where a group is that is below ``root``; ``None`` if it is not."""
        top = f"{self.root.rstrip('/')}/"
        below = f"{group}/".startswith(top) and not f"{group}/".startswith(f"{top}../")
        return str(self.path / group[len(top) :]) if below else None


Mounts = Mapping[str, Mount]
"""The trees of ``cpu`` and ``cpuset`` (v1), and the unified one (key ``""``, v2)."""


def mounts(root: Path) -> Mounts:
    """Where cgroups are mounted.

    The kernel separates fields by spaces and lines by line feeds, and escapes both in names, which
    may contain any other byte. Of several mounts of a tree, one that shows all of it, and is not
    hidden below another.
    """
    found: dict[str, dict[Path, Mount]] = {}  # of several at a place, the last is seen
    for kind, options, mount in _mounts(root):
        controllers = {"cgroup2": {""}, "cgroup": {"cpu", "cpuset"} & set(options.split(","))}
        for controller in controllers.get(kind, ()):
            found.setdefault(controller, {})[mount.path] = mount
    trees = {}
    for controller, mounted in found.items():
        hidden_last = sorted(mounted.values(), key=lambda m: (not m.path.is_dir(), m.root != "/"))
        trees[controller] = hidden_last[0]._replace(others=tuple(hidden_last[1:]))
    return trees


def _mounts(root: Path) -> Iterator[tuple[str, str, Mount]]:
    """Kind, options and place of each mount (proc_pid_mountinfo(5))."""
    try:
        text = files.text(root / "proc/self/mountinfo", files.PATHS)
    except FileNotFoundError:  # recordings of machines have the older list
        for line in files.text(root / "proc/self/mounts", files.PATHS).split("\n"):
            _, where, kind, options, *_ = [*line.split(" "), *[""] * 4]
            yield kind, options, Mount(root / where.lstrip("/"))
        return
    for line in text.split("\n"):
        place, _, rest = line.partition(" - ")
        _, _, _, top, where, *_ = [*place.split(" "), *[""] * 5]
        kind, _, options, *_ = [*rest.split(" "), *[""] * 3]
        yield kind, options, Mount(root / where.lstrip("/"), top)


def path_of(cgroup_file: str, mounted: Mounts, controller: str = "cpu") -> tuple[str, int] | None:
    """Folder and version of the cgroup in the text of a thread's ``/proc/.../cgroup`` file.

    ``controller``: ``cpu`` or ``cpuset``. ``None`` if the text names none that is mounted.
    ``OSError`` if the group is outside of this process's cgroup namespace.
    """
    unified = None
    for line in cgroup_file.rstrip("\n").split("\n"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(",") and controller in mounted:
            return None if (seen := _seen(path, mounted[controller])) is None else (seen, 1)
        if path and not controllers and "" in mounted:
            unified = _seen(path, mounted[""])
    return None if unified is None else (unified, 2)


def _seen(path: str, mount: Mount) -> str | None:
    """The folder of a group in the first mount that shows it; ``None`` if none does."""
    folders = [f for m in (mount, *mount.others) if (f := m.folder(path)) is not None]
    if not folders and path.startswith("/.."):
        raise OSError(errno.EXDEV, "it is in another cgroup namespace: set cgroupns_mode: host")
    return next((f for f in folders if os.path.isdir(f)), folders[0] if folders else None)


def limits_above(path: str, version: int, mount: str) -> tuple[tuple[str, Bandwidth], ...]:
    """The limits of the groups above one, the nearest first, by name below the ``mount``."""
    found = []
    while len(path := os.path.dirname(path)) > 1:
        with contextlib.suppress(OSError, ValueError, IndexError):  # the topmost one has no limit
            quota, *period = files.text(f"{path}/{_LIMIT[version][0]}").split()
            if quota not in ("max", "-1"):
                period = period or [files.text(f"{path}/{_LIMIT[version][1]}")]
                name = os.path.relpath(path, mount)
                found.append((name, Bandwidth(int(quota), int(period[0]))))
    return tuple(found)


@contextlib.contextmanager
def opened(path: str, inode: int) -> Iterator[str]:
    """A path by which a group's folder is reached as long as the context lasts.

    ``FileNotFoundError`` if the path now belongs to another group. The path given remains that of
    the same group, whatever happens to ``path`` meanwhile.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.fstat(fd).st_ino != inode:
            raise FileNotFoundError(errno.ENOENT, "the cgroup was replaced", path)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _number(raw: bytes, key: bytes) -> int:
    """The number after ``key`` in a ``cpu.stat`` file, 0 if the file has no such line."""
    at = raw.find(key)
    return int(raw[at + len(key) :].partition(b"\n")[0]) if at >= 0 else 0


def _write(path: str, value: str, kept: int | None = None) -> None:
    # A raw descriptor: buffered files report the kernel's EINVAL only when closed, or never.
    if kept is not None:
        os.pwrite(kept, value.encode(), 0)
        return
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _shown(limit: Bandwidth | None) -> str:
    return "no limit" if limit is None else f"the limit {limit.quota_us}/{limit.period_us} us"


class VcpuGroup:
    """The CPU cgroup of one vCPU; methods raise ``OSError`` (``GONE`` once it is removed)."""

    __slots__ = ("_fds", "_writable", "burst_us", "path", "version")

    def __init__(self, path: str, version: int) -> None:
        self.path = path
        self.version = version
        self._fds: list[int] = []
        self._writable = True
        try:
            self._fds.append(os.open(f"{path}/cpu.stat", os.O_RDONLY))
            for name in _LIMIT[version]:
                self._fds.append(self._open(f"{path}/{name}"))
        except OSError:
            self.close()
            raise
        self.burst_us = 0
        """Unused quota that the vCPU may accumulate (``cpu.max.burst``), as last read."""

    def _open(self, path: str) -> int:
        """Open a file for reading and writing, or only for reading if writing is not permitted.

        In the second case a later write tries again, and its error says why.
        """
        try:
            return os.open(path, os.O_RDWR)
        except OSError as exc:
            if exc.errno not in READ_ONLY:
                raise
            self._writable = False
            return os.open(path, os.O_RDONLY)

    def close(self) -> None:
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds = []

    def throttled_ns(self) -> int:
        """Cumulative time in which the limit kept the vCPU from running."""
        raw = os.pread(self._fds[0], _READ_BYTES, 0)
        if self.version == 1:
            return _number(raw, b"throttled_time ")
        return _number(raw, b"throttled_usec ") * 1000

    def periods(self) -> int:
        """Cumulative number of bandwidth periods that began while the vCPU had demand."""
        return _number(os.pread(self._fds[0], _READ_BYTES, 0), b"nr_periods ")

    def read_burst(self) -> int:
        """Read and return ``burst_us``: 0 on kernels before 5.14, which have no burst."""
        try:
            self.burst_us = int(files.line(f"{self.path}/{_BURST[self.version]}"))
        except FileNotFoundError:
            self.throttled_ns()  # fails if the group is gone
            return 0
        return self.burst_us

    def _set_burst(self, burst_us: int) -> None:
        _write(f"{self.path}/{_BURST[self.version]}", str(burst_us))
        self.burst_us = burst_us

    def bandwidth(self) -> Bandwidth | None:
        """The limit in force, ``None`` if there is none."""
        quota, *period = os.pread(self._fds[1], 64, 0).split()
        if quota == b"max" or quota.startswith(b"-"):
            return None
        return Bandwidth(int(quota), int(period[0]) if period else self._period_us())

    def _period_us(self) -> int:
        """The period, which is a file of its own in version 1."""
        return int(os.pread(self._fds[2], 64, 0))

    def set_bandwidth(self, limit: Bandwidth | None, burst_us: int = 0) -> None:
        """Write a limit and a burst; ``ActuationFailed`` if the kernel then reports another limit.

        The kernel refuses a quota below the burst, so the burst is cleared first and set last. The
        limit that is in force is not written again.
        """
        if limit is not None and self.read_burst():
            self._set_burst(0)
        if self.bandwidth() != limit:
            if self.version == 2:
                quota = "max" if limit is None else limit.quota_us
                self._put("cpu.max", f"{quota} {limit.period_us if limit else PERIOD_US}")
            else:
                self._set_v1(limit)
        if burst_us:
            self._set_burst(burst_us)
        self.check(limit)

    def check(self, limit: Bandwidth | None) -> None:
        """Read the limit after a write; ``ActuationFailed`` if the kernel reports another."""
        if (now := self.bandwidth()) != limit:
            raise ActuationFailed(f"the kernel reports {_shown(now)} after {_shown(limit)} was set")

    def _set_v1(self, limit: Bandwidth | None) -> None:
        """Write quota and period (two files) in the order whose intermediate limit is lower."""
        now = self.bandwidth()
        period = self._period_us()
        if limit is None:
            self._put("cpu.cfs_quota_us", "-1")
            return None if period == PERIOD_US else self._put("cpu.cfs_period_us", str(PERIOD_US))
        to_quota = ("cpu.cfs_quota_us", str(limit.quota_us))
        if period == limit.period_us:
            return self._put(*to_quota)
        to_period = ("cpu.cfs_period_us", str(limit.period_us))
        if now is None or now.quota_us / limit.period_us < limit.quota_us / period:
            return self._put_both(to_period, to_quota, str(period))
        return self._put_both(to_quota, to_period, str(now.quota_us))

    def _put_both(self, first: tuple[str, str], then: tuple[str, str], before: str) -> None:
        """Write two files; if the kernel refuses the second, restore the first."""
        self._put(*first)
        try:
            self._put(*then)
        except OSError:
            with contextlib.suppress(OSError):
                self._put(first[0], before)
            raise

    def _put(self, name: str, text: str) -> None:
        fd = self._fds[1 + _LIMIT[self.version].index(name)] if self._writable else None
        _write(f"{self.path}/{name}", text, fd)


class DomainGroup:
    """The CPU cgroup of a whole domain; methods raise ``OSError`` (``GONE`` once it is removed).

    ``shares`` are in the unit of the cgroup version: ``cpu.weight``, in version 1 ``cpu.shares``.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.version = 2 if os.path.exists(f"{folder}/{_WEIGHT[2]}") else 1
        self._path = f"{folder}/{_WEIGHT[self.version]}"
        self._fd = os.open(self._path, os.O_RDONLY)

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def shares(self) -> int:
        """What the kernel reports."""
        return int(os.pread(self._fd, 16, 0))

    def weight(self) -> int:
        """The CPU weight (``model.cpu_weight``)."""
        shares = self.shares()
        return shares if self.version == 2 else round(shares * DEFAULT / _SHARES)

    def shares_of(self, weight: int) -> int:
        """A CPU weight in the unit of this cgroup version."""
        return weight if self.version == 2 else round(weight * _SHARES / DEFAULT)

    def set_shares(self, shares: int) -> None:
        """Write the shares and read them back; ``ActuationFailed`` if they do not change."""
        self.shares()  # raises if the group is gone: another one may have its path by now
        _write(self._path, str(shares))
        self.check(shares)

    def check(self, shares: int) -> None:
        """Read the shares after a write; ``ActuationFailed`` if the kernel reports others."""
        if (now := self.shares()) != shares:
            name = os.path.basename(self._path)
            raise ActuationFailed(f"the kernel reports the {name} {now} after {shares} was set")


def at_period_start(
    groups: Mapping[K, VcpuGroup],
    act: Callable[[K], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Call ``act`` for every group when its next period begins: to write limits.

    At every write the kernel refills the group's bandwidth. In the middle of a period, a group that
    has used up its quota would get a second one: 3 % of what it may use in 3 s. Right after a
    period begins, the refill returns only what the group has used since.

    A group without demand begins no period, and a refill gives it nothing: ``act`` is called for it
    after the length of one period.
    """
    began, now = {}, clock()
    until = {}
    for key, group in groups.items():
        began[key], period_s = _period(group)
        until[key] = now + min(1.1 * period_s, WAIT_MAX_S)
    while began:
        for key in list(began):
            if _period(groups[key])[0] != began[key] or clock() >= until[key]:
                del began[key]
                act(key)
        if began:
            sleep(POLL_S)


def _period(group: VcpuGroup) -> tuple[int, float]:
    """Number of periods so far, and the length of one in s; 0 s if the group is gone."""
    try:
        limit = group.bandwidth()
        return group.periods(), 0.0 if limit is None else limit.period_us / 1e6
    except OSError:  # ``act`` finds that out
        return -1, 0.0
