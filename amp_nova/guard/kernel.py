"""Reads and writes the kernel's files for one vCPU or domain that a record names.

Before a write, the target is verified. If another group now has the recorded path, or another
thread the recorded ID, ``FileNotFoundError`` or ``ProcessLookupError`` is raised with an ``errno``
in ``GONE``, and nothing is written.
"""

import contextlib
import errno
import os
from collections.abc import Iterator

from amp_nova.guard.record import Domain, Limit, State, Vcpu, started
from amp_nova.guard.target import Step

GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ESRCH})
_QUOTA, _PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"
_BURST = {1: "cpu.cfs_burst_us", 2: "cpu.max.burst"}


class Refused(Exception):
    """The kernel did not take the value that was written."""


def _write(folder: int, name: str, text: str) -> None:
    # A raw descriptor: buffered files report the kernel's EINVAL only when closed, or never.
    fd = os.open(name, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _read(folder: int, name: str) -> str:
    fd = os.open(name, os.O_RDONLY, dir_fd=folder)
    try:
        return os.read(fd, 128).decode()
    finally:
        os.close(fd)


@contextlib.contextmanager
def opened(path: str, inode: int) -> Iterator[int]:
    """A descriptor of the group's folder; ``FileNotFoundError`` if it is another group now."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.fstat(fd).st_ino != inode:
            raise FileNotFoundError(errno.ENOENT, "another group has its path now", path)
        yield fd
    finally:
        os.close(fd)


class VcpuTarget:
    """The thread and the CPU cgroup of one recorded vCPU; ``folder``: descriptor of the cgroup."""

    def __init__(self, vcpu: Vcpu, folder: int) -> None:
        self._vcpu = vcpu
        self._tid = int(os.path.basename(vcpu.task))
        self._folder = folder
        self._verify()

    def _verify(self) -> None:
        if started(self._vcpu.task) != self._vcpu.started:
            raise ProcessLookupError(errno.ESRCH, "its thread is another one now")

    def state(self) -> State:
        """The limit and the affinity in force."""
        return State(self._limit(), frozenset(os.sched_getaffinity(self._tid)))

    def take(self, step: Step) -> None:
        """Write one step and read it back; raises ``Refused`` if the kernel has another value."""
        self._verify()
        if isinstance(step, Limit):
            self._set_limit(step)
            found = self._limit()
            if found != step and not (found.quota_us is None and step.quota_us is None):
                raise Refused(f"the kernel has its limit at {found.quota_us}/{found.period_us} us")
        else:
            os.sched_setaffinity(self._tid, step)
            if not (now := frozenset(os.sched_getaffinity(self._tid))) <= step:
                raise Refused(f"the kernel has its affinity at pCPUs {sorted(now)}")
        self._verify()

    def _limit(self) -> Limit:
        if self._vcpu.version == 2:
            quota, period = _read(self._folder, "cpu.max").split()
        else:
            quota, period = _read(self._folder, _QUOTA), _read(self._folder, _PERIOD)
        none = quota.startswith(("max", "-"))
        return Limit(None if none else int(quota), int(period), self._burst_us())

    def _burst_us(self) -> int:
        try:
            return int(_read(self._folder, _BURST[self._vcpu.version]))
        except FileNotFoundError:  # kernels before 5.14
            return 0

    def _put(self, name: str, value: object) -> None:
        _write(self._folder, name, str(value))

    def _set_limit(self, wanted: Limit) -> None:
        """The kernel refuses a quota below the burst: clear the burst first, and set it last."""
        burst = _BURST[self._vcpu.version]
        now = self._limit()
        if now.burst_us:
            self._put(burst, 0)
        if self._vcpu.version == 2:
            quota = "max" if wanted.quota_us is None else wanted.quota_us
            self._put("cpu.max", f"{quota} {wanted.period_us}")
        else:
            self._set_v1(now, wanted)
        if wanted.burst_us:
            self._put(burst, wanted.burst_us)

    def _set_v1(self, now: Limit, wanted: Limit) -> None:
        """Set quota and period, which are two files in cgroup v1, without exceeding either limit.

        Of the two orders, take the one with the lower limit in between.
        """
        if wanted.quota_us is None:
            self._put(_QUOTA, -1)
            self._put(_PERIOD, wanted.period_us)
            return
        writes = [(_PERIOD, wanted.period_us), (_QUOTA, wanted.quota_us)]
        if now.period_us == wanted.period_us:
            writes = writes[1:]
        elif now.quota_us is not None and (
            now.quota_us / wanted.period_us >= wanted.quota_us / now.period_us
        ):
            writes.reverse()
        for name, value in writes:
            self._put(name, value)


def weight(domain: Domain) -> int:
    """The weight of a domain's group."""
    with opened(domain.group, domain.inode) as folder:
        return int(_read(folder, _weight_file(folder)))


def set_weight(domain: Domain, wanted: int) -> None:
    """Set the weight of a domain's group; raises ``Refused`` if the kernel does not take it.

    A group that an agent before version 2 left in the idle class, which has no weight, leaves it.
    """
    with opened(domain.group, domain.inode) as folder:
        with contextlib.suppress(FileNotFoundError):  # kernels before 5.15
            if _read(folder, "cpu.idle").startswith("1"):
                _write(folder, "cpu.idle", "0")
        name = _weight_file(folder)
        _write(folder, name, str(wanted))
        if int(_read(folder, name)) != wanted:
            raise Refused(f"it does not change its {name}")


def _weight_file(folder: int) -> str:
    return "cpu.weight" if os.access("cpu.weight", os.F_OK, dir_fd=folder) else "cpu.shares"
