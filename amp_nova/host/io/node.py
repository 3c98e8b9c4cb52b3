"""The I/O work of all domains of this node: an ``IoPort`` over /proc and /sys.

As for vCPUs, only thread affinity is set, within what libvirt's definition allows, and never in the
definition: nothing of it travels with a live migration.
"""

import errno
import time
from collections.abc import Mapping
from pathlib import Path

from amp_nova.exceptions import ActuationFailed
from amp_nova.host.cgroup.groups import mounts
from amp_nova.host.io.interfaces import InterfaceCounters, line_rate_bytes_s
from amp_nova.host.io.threads import Homes, IoThreads
from amp_nova.host.libvirt.domain_xml import DomainXml
from amp_nova.host.libvirt.hypervisor import Hypervisor
from amp_nova.host.vcpu_threads import incarnation
from amp_nova.model.allocation import Failure
from amp_nova.model.topology import Topology
from amp_nova.profiling.io_overlap import IoReading, ours

LINE_EVERY_S = 60.0
_READ_ONLY = frozenset({errno.EPERM, errno.EACCES})


class _Work:
    """What is kept open of one domain."""

    def __init__(self, root: Path, pid: int, life: str, xml: DomainXml, mounted: dict[str, Path]):
        self.pid = pid
        self.incarnation = life
        self.xml = xml
        self.threads = IoThreads(root, pid, mounted)
        self._root = root
        self._homes: tuple[Topology, DomainXml, Homes] | None = None
        self.interfaces = [InterfaceCounters(root, i) for i in xml.io.interfaces]

    def follow(self, xml: DomainXml) -> None:
        """Keep to the definition, which may have changed."""
        if xml is self.xml and all(i.counts for i in self.interfaces):
            return
        self.xml = xml
        for interface in self.interfaces:
            interface.close()
        self.interfaces = [InterfaceCounters(self._root, i) for i in xml.io.interfaces]

    def homes(self, topology: Topology) -> Homes:
        """As ``_homes``, kept as long as definition and topology are the same."""
        kept = self._homes
        if kept is None or kept[0] is not topology or kept[1] is not self.xml:
            kept = self._homes = (topology, self.xml, _homes(self.xml, topology))
        return kept[2]

    def close(self) -> None:
        """Give all descriptors back."""
        self.threads.close()
        for interface in self.interfaces:
            interface.close()


class IoHost:
    """``line_rate_mbps``: bandwidth of the line where no limit says less; ``None``: look it up."""

    def __init__(
        self,
        hypervisor: Hypervisor,
        run_path: Path,
        root: Path = Path("/"),
        line_rate_mbps: int | None = None,
    ) -> None:
        self._hypervisor = hypervisor
        self._run_path = run_path
        self._root = root
        self._mounted = mounts(root)
        self._configured = line_rate_mbps * 125_000.0 if line_rate_mbps else None
        self._found: float | None = None
        self._look_s = 0.0
        self._work: dict[str, _Work] = {}

    def read(self, topology: Topology) -> list[IoReading]:
        """Every domain's; one that cannot be read says why."""
        domains = self._hypervisor.domains()
        for gone in self._work.keys() - domains.keys():
            self._work.pop(gone).close()
        line = self._line()
        readings = ((u, x, self._try(u, x, topology, line)) for u, x in domains.items())
        return [
            r
            if isinstance(r, IoReading)
            else IoReading(u, x.domain.name, x.domain.project, "", time.monotonic_ns(), failure=r)
            for u, x, r in readings
        ]

    def _line(self) -> float | None:
        """Bandwidth of the line; links go up and down, if seldom."""
        if self._configured is not None:
            return self._configured
        if (now := time.monotonic()) >= self._look_s:
            self._found, self._look_s = line_rate_bytes_s(self._root), now + LINE_EVERY_S
        return self._found

    def _try(
        self, resource: str, xml: DomainXml, topology: Topology, line_bytes_s: float | None
    ) -> IoReading | str:
        if (problem := xml.domain.problem or xml.io.problem) is not None:
            return problem
        try:
            return self._read(resource, xml, topology, line_bytes_s)
        except (OSError, ValueError) as exc:
            if (work := self._work.pop(resource, None)) is not None:
                work.close()
            return f"its I/O threads cannot be read: {exc}"

    def _read(
        self, resource: str, xml: DomainXml, topology: Topology, line_bytes_s: float | None
    ) -> IoReading:
        work = self._work.get(resource)
        if work is None or work.xml is not xml or not work.threads.settled():
            work = self._kept(resource, xml)
            work.threads.rescan()
        work.follow(xml)
        threads = work.threads.read(work.homes(topology))
        counted = tuple(i.read(line_bytes_s) for i in work.interfaces)
        domain, life = xml.domain, work.incarnation
        return IoReading(
            resource, domain.name, domain.project, life, time.monotonic_ns(), threads, counted
        )

    def _kept(self, resource: str, xml: DomainXml) -> _Work:
        """What is kept of a domain, begun anew when its QEMU process is another one."""
        pid = int((self._run_path / f"{xml.domain.name}.pid").read_text())
        life = incarnation(self._root, pid)
        work = self._work.get(resource)
        if work is None or work.incarnation != life:
            if work is not None:
                self._work.pop(resource).close()
            work = self._work[resource] = _Work(self._root, pid, life, xml, self._mounted)
        return work

    def move(self, resource: str, wanted: Mapping[int, frozenset[int]]) -> Failure | None:
        """Keep threads on these pCPUs; the last that failed says why."""
        work, failure = self._work.get(resource), None
        for tid, pcpus in wanted.items() if work is not None else ():
            assert work is not None
            try:
                work.threads.move(tid, pcpus)
            except ActuationFailed as exc:
                failure = Failure("refused", str(exc))
            except OSError as exc:
                reason = "read_only" if exc.errno in _READ_ONLY else "refused"
                failure = Failure(reason, f"an I/O thread cannot be moved: {exc.strerror}")
        return failure

    def moved(self, topology: Topology) -> dict[str, dict[int, frozenset[int]]]:
        """Threads that the agent moved, by domain, with the home that each has in the definition.

        An affinity that the agent could not have set is somebody else's and left out.
        """
        found = {}
        for reading in self.read(topology):
            away = {t.tid: t.home for t in reading.threads if t.pcpus != t.home}
            if away and ours(reading.threads, topology):
                found[reading.resource] = away
        return found


def _homes(xml: DomainXml, topology: Topology) -> Homes:
    """Where the definition leaves a thread: its own pin, the domain's cpuset, all usual pCPUs."""
    online = frozenset(p.id for p in topology.pcpus)
    usual = frozenset(p.id for p in topology.pcpus if not p.isolated)

    def rest(own: frozenset[int] | None) -> frozenset[int]:
        return usual if own is None else own & online or usual

    emulator = rest(xml.cpuset if xml.io.emulator is None else xml.io.emulator)
    iothreads = {number: rest(pins) for number, pins in xml.io.iothreads.items()}
    others = rest(xml.cpuset)

    def home(iothread: int | None) -> frozenset[int]:
        return emulator if iothread is None else iothreads.get(iothread, others)

    return home
