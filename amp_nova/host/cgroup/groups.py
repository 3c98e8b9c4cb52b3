"""The CPU cgroups of vCPUs and domains, version 1 or 2, through open file descriptors.

A read or write through an open descriptor takes about 1 us; through libvirt it takes 1 to 2 ms. At
every write, even of the same value, the kernel refills a group's bandwidth and forgives its debt,
so callers write only changes.
"""

import contextlib
import errno
import os
from pathlib import Path

from amp_nova.exceptions import ActuationFailed
from amp_nova.model import cpu_weight
from amp_nova.model.bandwidth import Bandwidth

GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ESRCH})
"""Errors of a file whose process or cgroup no longer exists."""
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
"""Errors of a write that is not permitted."""
PERIOD_US = 100_000
"""The kernel's default period, which is assumed by anyone who sets only a quota."""
_READ_BYTES = 512
_LIMIT = {1: ("cpu.cfs_quota_us", "cpu.cfs_period_us"), 2: ("cpu.max",)}
"""The files of the limit, by cgroup version."""
_BURST = {1: "cpu.cfs_burst_us", 2: "cpu.max.burst"}
PERIOD_EVERY = 8
"""In version 1, one in so many reads of an unchanged quota also reads the period."""


def mounts(root: Path) -> dict[str, Path]:
    """Where the ``cpu`` controller (v1) and the unified tree (key ``""``, v2) are mounted.

    The kernel separates fields by spaces and lines by line feeds, and escapes both in names, which
    may contain any other byte.
    """
    found: dict[str, Path] = {}
    for line in os.fsdecode((root / "proc/self/mounts").read_bytes()).split("\n"):
        fields = line.split(" ")
        if len(fields) < 4:
            continue
        _, where, kind, options, *_ = fields
        if kind == "cgroup2":
            found.setdefault("", root / where.lstrip("/"))
        elif kind == "cgroup" and "cpu" in options.split(","):
            found.setdefault("cpu", root / where.lstrip("/"))
    return found


def path_of(cgroup_file: str, mounted: dict[str, Path]) -> tuple[str, int] | None:
    """Folder and version of the CPU cgroup in the text of a thread's ``/proc/.../cgroup`` file.

    ``None`` if the text names none that is mounted.
    """
    unified = None
    for line in cgroup_file.rstrip("\n").split("\n"):
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") and "cpu" in mounted:
            return str(mounted["cpu"] / path.lstrip("/")), 1
        if not controllers and "" in mounted:
            unified = str(mounted[""] / path.lstrip("/"))
    return None if unified is None else (unified, 2)


def _number(raw: bytes, key: bytes) -> int:
    """The number after ``key`` in a ``cpu.stat`` file, 0 if the file has no such line."""
    at = raw.find(key)
    return int(raw[at + len(key) :].split(None, 1)[0]) if at >= 0 else 0


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

    __slots__ = (
        "_bandwidth", "_fds", "_quota", "_raw", "_reads", "_writable", "burst_us", "path", "version"
    )  # fmt: skip

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
        self._raw = self._quota = b""
        self._reads = 0
        self._bandwidth: Bandwidth | None = None
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
        """Close the descriptors."""
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
            fd = os.open(f"{self.path}/{_BURST[self.version]}", os.O_RDONLY)
        except FileNotFoundError:
            self.throttled_ns()  # fails if the group is gone
            return 0
        try:
            self.burst_us = int(os.read(fd, 32))
        finally:
            os.close(fd)
        return self.burst_us

    def forbid_burst(self) -> None:
        """Set the burst to 0: the kernel refuses a quota below the burst."""
        if self.read_burst():
            _write(f"{self.path}/{_BURST[self.version]}", "0")
            self.burst_us = 0

    def bandwidth(self) -> Bandwidth | None:
        """The limit in force, ``None`` if there is none."""
        raw = os.pread(self._fds[1], 64, 0)
        if self.version == 1:
            # The period rarely changes while the quota stays the same: read it now and then.
            self._reads += 1
            if raw == self._quota and self._reads % PERIOD_EVERY:
                return self._bandwidth
            self._quota = raw
            raw += os.pread(self._fds[2], 64, 0)
        if raw != self._raw:
            quota, period = raw.split()
            unlimited = quota == b"max" or quota.startswith(b"-")
            self._bandwidth = None if unlimited else Bandwidth(int(quota), int(period))
            self._raw = raw
        return self._bandwidth

    def set_bandwidth(self, wanted: Bandwidth | None) -> None:
        """Write a limit and read it back; ``ActuationFailed`` if the kernel reports another."""
        if self.version == 2:
            quota = "max" if wanted is None else wanted.quota_us
            self._put("cpu.max", f"{quota} {wanted.period_us if wanted else PERIOD_US}")
        else:
            self._set_v1(wanted)
        self.check(wanted)

    def check(self, wanted: Bandwidth | None) -> None:
        """Read the limit after a write; ``ActuationFailed`` if the kernel reports another."""
        self._quota = b""
        found = self.bandwidth()
        if found != wanted:
            raise ActuationFailed(
                f"{os.path.basename(self.path)} has {_shown(found)} after {_shown(wanted)} was set"
            )

    def _set_v1(self, wanted: Bandwidth | None) -> None:
        """Write quota and period (two files) in the order whose intermediate limit is lower."""
        now = self.bandwidth()
        period = int(os.pread(self._fds[2], 64, 0))
        if wanted is None:
            self._put("cpu.cfs_quota_us", "-1")
            return None if period == PERIOD_US else self._put("cpu.cfs_period_us", str(PERIOD_US))
        to_quota = ("cpu.cfs_quota_us", str(wanted.quota_us))
        if period == wanted.period_us:
            return self._put(*to_quota)
        to_period = ("cpu.cfs_period_us", str(wanted.period_us))
        if now is None or now.quota_us / wanted.period_us < wanted.quota_us / period:
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


_WEIGHT = {1: "cpu.shares", 2: "cpu.weight"}
_SHARES = 1024
"""The shares of cgroup version 1 that are ``cpu_weight.DEFAULT``."""


class DomainGroup:
    """The CPU cgroup of a whole domain; methods raise ``OSError`` (``GONE`` once it is removed)."""

    def __init__(self, vcpu: str, version: int) -> None:
        """``vcpu``: the folder of one of its vCPUs, in version 2 two levels down."""
        self.folder = os.path.dirname(vcpu).removesuffix("/libvirt")
        self.version = version
        self._path = f"{self.folder}/{_WEIGHT[version]}"
        self._fd = os.open(self._path, os.O_RDONLY)

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def weight(self) -> int:
        """The CPU weight (``model.cpu_weight``), 0 in the kernel's idle class (``cpu.idle``)."""
        found = int(os.pread(self._fd, 16, 0))
        return found if self.version == 2 else round(found * cpu_weight.DEFAULT / _SHARES)

    def set_weight(self, weight: int) -> None:
        """Write the CPU weight and read it back; ``ActuationFailed`` if it does not change.

        A group that an older agent left in the idle class, which has no weight, leaves it first.
        """
        if not self.weight():
            _write(f"{self.folder}/cpu.idle", "0")
        _write(self._path, str(self.shares_of(weight)))
        self.check(weight)

    def shares_of(self, weight: int) -> int:
        """A CPU weight in the unit of this cgroup version."""
        return weight if self.version == 2 else round(weight * _SHARES / cpu_weight.DEFAULT)

    def check(self, wanted: int) -> None:
        """Read the weight after a write; ``ActuationFailed`` if the kernel reports another."""
        if (now := self.weight()) != wanted:
            name = os.path.basename(self.folder)
            raise ActuationFailed(f"{name} has the CPU weight {now} after {wanted} was set")
