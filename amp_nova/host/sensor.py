# SPDX-License-Identifier: Apache-2.0
"""Reads a real compute node through libvirt, cgroups and ``/proc``; it writes nothing."""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from msgspec import structs

from amp_nova.exceptions import AmpError
from amp_nova.host.counters.sources import Counters
from amp_nova.host.cpusets import GuestCpusets
from amp_nova.host.libvirt.domain_xml import DomainXml
from amp_nova.host.libvirt.hypervisor import Hypervisor
from amp_nova.host.machine import OnlineTopology
from amp_nova.host.vcpu_threads import RUN_PATH, VcpuThread, VcpuThreads, incarnation, process_id
from amp_nova.kernel import cpus
from amp_nova.kernel.cgroups import mounts
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.cpulist import shared
from amp_nova.model.observation import Domain, DomainReading, Observation, VcpuKey, VcpuSample
from amp_nova.model.topology import Topology

THOROUGH_EVERY = 6
"""One in so many rescans reads the cgroups of all threads again, even if none came or went, and
their cpusets, even if that of all guests is the same, and the limits of the groups above."""


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Where libvirt's pid files and the root of ``/proc`` and ``/sys`` are."""

    run_path: Path = Path("/", RUN_PATH)
    root: Path = Path("/")
    rescan_s: float = 10.0
    """Seconds between two searches for vCPU threads that were plugged or unplugged."""


@dataclass(slots=True)
class _Guest:
    """One domain: its threads, its definition, the pCPUs allowed to each vCPU, and the rest of what
    is read only now and then."""

    threads: VcpuThreads
    domain: Domain
    xml: DomainXml | None = None
    allowed: dict[int, frozenset[int]] = field(default_factory=dict)
    bursts_us: dict[int, int] = field(default_factory=dict)
    realtime: frozenset[int] = frozenset()
    ceilings: tuple[tuple[str, Bandwidth], ...] = ()
    sandboxed: bool = True


class LibvirtSensor:
    """The domains of this node, as libvirt and the kernel describe them."""

    def __init__(
        self,
        hypervisor: Hypervisor,
        online: OnlineTopology,
        paths: HostPaths | None = None,
        counters: Counters | None = None,
        paused: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """``paused`` returns the instances that must not be changed, with the reasons."""
        self.hypervisor = hypervisor
        self._online = online
        self._paths = paths = paths or HostPaths()
        self._counters = counters or Counters(paths.root)
        self._paused = paused
        self._mounted = mounts(paths.root)
        self._guests: dict[str, _Guest] = {}
        self._cpusets = GuestCpusets(self._mounted)
        self._rescanned_s = time.monotonic()
        self._rescans = 0

    @property
    def topology(self) -> Topology:
        """The core types and online pCPUs, as of the last observation."""
        return self._online.topology

    def observe(self) -> Observation:
        """Read everything once.

        Raises ``HypervisorUnavailable`` if libvirt has never answered, and ``AmpError`` if no file
        can be opened: every domain would seem to be gone.
        """
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as exc:
            problem = f"no file can be opened ({exc.strerror})"
            raise AmpError(f"{problem}: raise LimitNOFILE of the agent or fs.file-max") from exc
        rescan = time.monotonic() - self._rescanned_s > self._paths.rescan_s
        if rescan:
            self._rescanned_s = time.monotonic()
            self._rescans += 1
            self._cpusets.search()
        if self._online.follow(rescan):
            for guest in self._guests.values():
                guest.xml = None
        domains = self.hypervisor.domains()
        for gone in self._guests.keys() - domains.keys():
            self._forget(gone)
        readings = tuple(self._domain(uuid, xml, rescan) for uuid, xml in domains.items())
        if self._cpusets.follow():
            for guest in self._guests.values():
                guest.xml = None
            readings = tuple(self._domain(uuid, xml, rescan) for uuid, xml in domains.items())
        inactive = tuple(
            DomainReading(xml.domain, (), allowed=self._allowed(xml))
            for xml in self.hypervisor.inactive().values()
        )
        slowed = any(t.smt_busy_factor is not None for t in self.topology.core_types)
        return Observation(
            time.monotonic_ns(),
            self.topology,
            readings,
            self._paused(),
            inactive,
            self._cpusets.usable,
            cpus.idle_ns(self._paths.root) if slowed else {},
        )

    def located(self, observation: Observation) -> Observation:
        """An observation with where vCPUs ran last that may run on several core types."""
        domains = []
        for domain in observation.domains:
            vcpus = list(domain.vcpus)
            for at, vcpu in enumerate(vcpus):
                thread = self.thread((domain.domain.resource, vcpu.index))
                if thread is not None and observation.topology.position(vcpu.pcpus) is None:
                    with contextlib.suppress(OSError, ValueError):  # it has gone
                        vcpus[at] = structs.replace(vcpu, last_pcpu=thread.last_pcpu())
            domains.append(structs.replace(domain, vcpus=tuple(vcpus)))
        return replace(observation, domains=tuple(domains))

    def sample(self, keys: Collection[VcpuKey]) -> Mapping[VcpuKey, VcpuSample]:
        """Counters of these vCPUs now; a vCPU that is gone or not counted is left out."""
        samples = {}
        for key in keys:
            if (thread := self.thread(key)) is None:
                continue
            try:
                sample = thread.sample()
            except (OSError, ValueError):  # gone: the next observation searches for it
                continue
            if sample is not None:
                samples[key] = sample
        return samples

    def counting(self) -> Mapping[tuple[str, str], int]:
        """Number of vCPUs by counter source and remark."""
        threads = (t for guest in self._guests.values() for t in guest.threads.by_index.values())
        return Counter(thread.counts.state for thread in threads)

    def threads(self, resource: str) -> VcpuThreads | None:
        """The threads of a domain, by its UUID."""
        guest = self._guests.get(resource)
        return guest.threads if guest else None

    def reread(self) -> None:
        """Read everything in the next observation, even of sleeping vCPUs: others wrote limits."""
        self._rescanned_s = float("-inf")

    def about(self, resource: str) -> tuple[Domain, Mapping[int, frozenset[int]]] | None:
        """A domain as of the last observation, and the pCPUs allowed to each vCPU."""
        guest = self._guests.get(resource)
        return None if guest is None else (guest.domain, guest.allowed)

    def thread(self, key: VcpuKey) -> VcpuThread | None:
        """The thread of a vCPU, if it was there at the last observation."""
        guest = self._guests.get(key[0])
        return guest.threads.by_index.get(key[1]) if guest else None

    def _forget(self, resource: str) -> None:
        if (guest := self._guests.pop(resource, None)) is not None:
            guest.threads.close()

    def _domain(self, resource: str, xml: DomainXml, rescan: bool) -> DomainReading:
        if xml.domain.problem is not None:
            return DomainReading(xml.domain, (), allowed=self._allowed(xml))
        # The guest threads may be those of an ended process: a second attempt finds the new one.
        failure = ""
        for _ in range(2 if resource in self._guests else 1):
            try:
                return self._read(resource, xml, rescan)
            except (OSError, ValueError) as exc:
                self._forget(resource)
                failure = f"its threads cannot be read: {exc}"
        return DomainReading(xml.domain, (), failure, allowed=self._allowed(xml))

    def _read(self, resource: str, xml: DomainXml, rescan: bool) -> DomainReading:
        guest = self._guests.get(resource)
        closely = rescan or guest is None or guest.xml is not xml
        if closely or guest is None or guest.threads.incomplete:
            guest = self._guest(resource, xml)
        domain, threads, allowed = guest.domain, guest.threads, guest.allowed
        vcpus = tuple(
            [
                thread.read(allowed[index], closely=closely)
                for index, thread in threads.by_index.items()
                if index < domain.vcpus
            ]
        )
        missing = None if vcpus else "none of its vCPUs has a CPU cgroup of its own"
        if vcpus and threads.groupless:
            which = ", ".join(str(i) for i in sorted(threads.groupless))
            missing = f"vCPU {which} has no CPU cgroup of its own"
        group = None if domain.weighted_elsewhere else threads.domain
        weight = group.weight() if group else None
        if closely:
            found = (i for i, thread in threads.by_index.items() if thread.realtime())
            guest.realtime = frozenset(found)
        if rescan:  # a process that has just started has no filter yet
            guest.sandboxed = threads.sandboxed()
        if closely or guest.bursts_us:
            bursts = ((i, t.group.burst_us) for i, t in threads.by_index.items())
            guest.bursts_us = {i: burst_us for i, burst_us in bursts if burst_us}
        rarely = guest.bursts_us, allowed, guest.realtime, guest.ceilings, guest.sandboxed
        return DomainReading(domain, vcpus, missing, weight, *rarely)

    def _guest(self, resource: str, xml: DomainXml) -> _Guest:
        """The domain as defined, with its threads, searched for again if it has a new QEMU process.

        Reading a descriptor of an ended process fails, so the PID is checked only now and then.
        """
        guest = self._guests.get(resource)
        if guest is not None and guest.threads.by_index and self._rescans % THOROUGH_EVERY:
            guest.threads.follow()  # fails if the process has ended
        else:
            root, pid = self._paths.root, process_id(self._paths.run_path, xml.domain.name)
            if guest is None or guest.threads.incarnation != incarnation(root, pid):
                self._forget(resource)
                threads = VcpuThreads(root, pid, self._mounted, self._counters, xml.emulated)
                guest = self._guests[resource] = _Guest(threads, xml.domain)
            else:
                guest.threads.rescan()
            guest.xml = None
        if guest.xml is not xml:
            guest.xml, guest.allowed = xml, self._allowed(xml, guest.threads.by_index)
            guest.domain = replace(xml.domain, incarnation=guest.threads.incarnation)
            guest.ceilings = guest.threads.ceilings()
        self._cpusets.add(guest.threads.by_index.values())
        return guest

    def _allowed(
        self, xml: DomainXml, threads: Mapping[int, VcpuThread] = MappingProxyType({})
    ) -> dict[int, frozenset[int]]:
        """The online pCPUs that a definition, and the cpusets of threads, permit to each vCPU."""
        usual = frozenset(p.id for p in self.topology.pcpus if not p.isolated)
        online = frozenset(p.id for p in self.topology.pcpus)
        allowed = {}
        for index in range(xml.domain.vcpus):
            defined = xml.pins.get(index, xml.cpuset)
            pcpus = usual if defined is None else defined & online
            left = self._cpusets.of(threads.get(index), own=not self.hypervisor.connection.writable)
            allowed[index] = shared(pcpus if left is None else pcpus & left)
        return allowed
