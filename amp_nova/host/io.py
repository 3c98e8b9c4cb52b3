# SPDX-License-Identifier: Apache-2.0
"""The I/O work of all domains on this node: an ``IoPort`` over /proc and /sys.

It changes only the affinity of threads, within the pCPUs that the domain's definition allows, and
never the definition itself, so nothing travels with a live migration.
"""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from amp_nova.exceptions import ActuationFailed
from amp_nova.host.io_threads import Homes, IoThreads
from amp_nova.host.libvirt.domain_xml import DomainXml, InterfaceXml
from amp_nova.host.libvirt.hypervisor import Hypervisor
from amp_nova.host.vcpu_threads import incarnation, process_id
from amp_nova.kernel import files
from amp_nova.kernel.cgroups import mounts
from amp_nova.model.topology import Topology
from amp_nova.profiling.io_overlap import Interface, IoReading, IoThread, ours

LINE_EVERY_S = 60.0
"""Interval at which the line rate is read again: links go up and down, but rarely."""
_BYTES_PER_MBIT = 125_000


def line_rate_bytes_s(root: Path) -> float | None:
    """Bandwidth of the fastest physical link that is up; ``None`` if no driver reports one.

    Taps have no ``device`` link and are left out: the speed they report is a constant.
    """
    speeds = []
    for device in (root / "sys/class/net").glob("*/device"):
        with contextlib.suppress(OSError, ValueError):  # a link that is down has no speed
            speeds.append(int(files.text(device.parent / "speed")))
    fastest = max(speeds, default=0)
    return fastest * _BYTES_PER_MBIT if fastest > 0 else None


def read_interface(root: Path, defined: InterfaceXml, line_bytes_s: float | None) -> Interface:
    """Bytes in either direction, and the limits; a missing limit is ``line_bytes_s``.

    An interface without a device, or whose device does not exist, counts nothing.
    """
    into: int | None = None
    out: int | None = None
    if defined.device is not None:
        folder = f"{root}/sys/class/net/{defined.device}/statistics"
        # What the host receives from a tap, the guest has sent.
        names = ("rx_bytes", "tx_bytes") if defined.host_view else ("tx_bytes", "rx_bytes")
        with contextlib.suppress(OSError, ValueError):
            into, out = (int(files.line(f"{folder}/{name}")) for name in names)
    return Interface(
        defined.device or "?",
        into,
        out,
        defined.in_limit_bytes_s or line_bytes_s,
        defined.out_limit_bytes_s or line_bytes_s,
    )


class IoHost:
    """Reads and moves the I/O threads of this node's domains.

    ``line_rate_mbps``: bandwidth of interfaces without a limit; ``None``: the host link's.
    """

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
        self._line_bytes_s = float(line_rate_mbps * _BYTES_PER_MBIT) if line_rate_mbps else None
        self._line_due_s = float("inf") if line_rate_mbps else 0.0
        self._domains: dict[str, IoThreads] = {}

    def read(self, topology: Topology) -> list[IoReading]:
        """The I/O of every domain; a reading that failed says why."""
        domains = self._hypervisor.domains()
        self._domains = {r: threads for r, threads in self._domains.items() if r in domains}
        if (now := time.monotonic()) >= self._line_due_s:
            self._line_bytes_s = line_rate_bytes_s(self._root)
            self._line_due_s = now + LINE_EVERY_S
        online = frozenset(p.id for p in topology.pcpus)
        usual = frozenset(p.id for p in topology.pcpus if not p.isolated)
        return [self._read(xml, _homes(xml, online, usual)) for xml in domains.values()]

    def _read(self, xml: DomainXml, homes: Homes) -> IoReading:
        about, problem = xml.domain, xml.domain.problem or xml.io.problem
        life = ""
        threads: tuple[IoThread, ...] = ()
        interfaces: tuple[Interface, ...] = ()
        if problem is None:
            try:
                pid = process_id(self._run_path, about.name)
                life = incarnation(self._root, pid)
                found = self._domains.get(about.resource)
                if found is None or found.incarnation != life:
                    found = IoThreads(self._root, pid, self._mounted)
                    self._domains[about.resource] = found
                threads = found.read(homes)
                interfaces = tuple(
                    read_interface(self._root, i, self._line_bytes_s) for i in xml.io.interfaces
                )
            except (OSError, ValueError) as exc:
                self._domains.pop(about.resource, None)
                problem = f"its I/O threads cannot be read: {exc}"
        now_ns, names = time.monotonic_ns(), (about.resource, about.name, about.project)
        return IoReading(*names, life, now_ns, threads, interfaces, problem)

    def move(self, resource: str, affinities: Mapping[int, frozenset[int]]) -> str | None:
        """Set the affinity of threads; returns what failed last."""
        failure = None
        if (threads := self._domains.get(resource)) is None:
            return None
        for tid, pcpus in affinities.items():
            try:
                threads.move(tid, pcpus)
            except ActuationFailed as exc:
                failure = str(exc)
            except OSError as exc:
                failure = f"an I/O thread cannot be moved: {exc.strerror}"
        return failure

    def moved(self, topology: Topology) -> dict[str, dict[int, frozenset[int]]]:
        """The homes of threads that the agent moved, by domain and thread.

        A domain with an affinity that the agent could not have set is left out.
        """
        homes = {}
        for reading in self.read(topology):
            away = {t.tid: t.home for t in reading.threads if t.pcpus != t.home}
            if away and ours(reading.threads, topology):
                homes[reading.resource] = away
        return homes


def _homes(xml: DomainXml, online: frozenset[int], usual: frozenset[int]) -> Homes:
    """The pCPUs that the definition allows a thread: its pin, the domain's cpuset, or ``usual``."""

    def allowed(pin: frozenset[int] | None) -> frozenset[int]:
        return usual if pin is None else pin & online or usual

    emulator = allowed(xml.cpuset if xml.io.emulator is None else xml.io.emulator)

    def home(iothread: int | None) -> frozenset[int]:
        if iothread is None:
            return emulator
        return allowed(xml.io.iothreads.get(iothread, xml.cpuset))

    return home
