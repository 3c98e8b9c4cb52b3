"""A real compute node: ``Sensor``, ``Actuator`` and ``FastPort`` over libvirt, cgroups and /proc.

What the contract sets, it sets in the vCPU's own cgroup and by thread affinity, within what libvirt
allows. Nothing of it enters libvirt's definition, so nothing of it travels with a live migration to
a host where it would be wrong.
"""

import logging
import operator
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from amp_nova.exceptions import ActuationFailed, AmpError
from amp_nova.host.cgroup.groups import GONE, READ_ONLY, mounts
from amp_nova.host.cgroup.period_start import at_period_start
from amp_nova.host.counters.sources import NONE, Counters
from amp_nova.host.libvirt.domain_xml import DomainXml
from amp_nova.host.libvirt.hypervisor import Hypervisor, with_incarnation
from amp_nova.host.vcpu_threads import VcpuThread, VcpuThreads, incarnation
from amp_nova.model import cpulist
from amp_nova.model.allocation import Change, Failure, Step
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import DomainReading, Observation, Sample, VcpuKey, VcpuReading
from amp_nova.model.topology import Topology

LOG = logging.getLogger(__name__)
THOROUGH_EVERY = 6
"""Rescans until the groups of all threads are read anew, not only where threads came or went."""


class LibvirtHost:
    """The domains of this node.

    ``load_topology`` reads the machine again whenever ``online`` (what is online now) changes;
    ``held`` tells the instances to keep hands off.
    """

    def __init__(
        self,
        hypervisor: Hypervisor,
        load_topology: Callable[[], Topology],
        online: Callable[[], frozenset[int]],
        run_path: Path,
        held: Callable[[], Mapping[str, str]] = dict,
        root: Path = Path("/"),
        rescan_s: float = 10.0,
        counters: Counters | None = None,
    ) -> None:
        self._hypervisor = hypervisor
        self._load_topology = load_topology
        self._online_now = online
        self._run_path = run_path
        self._held = held
        self._root = root
        self._rescan_s = rescan_s
        self._counters = counters or Counters(NONE, root)
        self._mounted = mounts(root)
        self._online = online()
        self._topology = load_topology()
        self._threads: dict[str, VcpuThreads] = {}
        self._described: dict[str, tuple[DomainXml, DomainXml, dict[int, frozenset[int]]]] = {}
        self._rescanned_s = time.monotonic()
        self._rescans = 0
        self._counting: Counter[tuple[str, str]] | None = None
        self._unsure = False

    @property
    def hypervisor(self) -> Hypervisor:
        """What lists the domains."""
        return self._hypervisor

    @property
    def calls(self) -> int:
        """Calls made to libvirt so far."""
        return self._hypervisor.calls

    def hostname(self) -> str:
        """This host's name as libvirt knows it."""
        return self._hypervisor.hostname()

    @property
    def hypervisor_up(self) -> bool:
        """Whether libvirt answered when it was last asked."""
        return self._hypervisor.available

    def observe(self) -> Observation:
        """Read everything once; ``HypervisorUnavailable`` if libvirt never answered yet."""
        rescan = time.monotonic() - self._rescanned_s > self._rescan_s
        if rescan:
            self._rescanned_s = time.monotonic()
            self._rescans += 1
            self._counting = None
        self._follow_hotplug(rescan)
        domains = self._hypervisor.domains()
        for gone in self._threads.keys() - domains.keys():
            self._forget(gone)
        readings = tuple(self._domain(uuid, xml, rescan) for uuid, xml in domains.items())
        return Observation(time.monotonic_ns(), self._topology, readings, self._held())

    def _follow_hotplug(self, rescan: bool) -> None:
        """Keep to the pCPUs that are online; those of an unknown core type are left out."""
        online = self._online_now()
        if online == self._online and not (self._unsure and rescan):
            return
        now = self._topology.with_online(online)
        self._unsure = False
        if now is None:
            try:
                now = self._load_topology()
            except AmpError as exc:
                if online != self._online:
                    LOG.error("pCPUs came online and their core types cannot be told: %s", exc)
                self._unsure = True
                known = {p.id for p in self._topology.known or self._topology.pcpus}
                now = self._topology.with_online(online & known) or self._topology
        if online != self._online:
            LOG.info("CPUs went on- or offline; online now: %s", cpulist.show(online))
        self._topology, self._online, self._described = now, online, {}

    def _forget(self, resource: str) -> None:
        self._counting = None
        if (threads := self._threads.pop(resource, None)) is not None:
            threads.close()
        self._described.pop(resource, None)

    def sample(self, keys: Collection[VcpuKey]) -> Mapping[VcpuKey, Sample]:
        """Counters of these vCPUs now; one that went, or that nothing counts now, is left out."""
        samples = {}
        for key in keys:
            thread = self._thread(key)
            try:
                found = thread.sample() if thread else None
            except OSError:  # it went; the next cycle looks for it
                continue
            if found is not None:
                samples[key] = found
        return samples

    def throttle(self, limits: Mapping[VcpuKey, Bandwidth]) -> Mapping[VcpuKey, Failure]:
        """Write limits at once; one that is in force already is left alone."""
        failures = {}
        for key, limit in limits.items():
            failure = self._take(key, (Step(bandwidth=limit),))
            if failure is not None:
                failures[key] = failure
        return failures

    def counting(self) -> Mapping[tuple[str, str], int]:
        """How many vCPUs each source counts, with what there is to say about it.

        As of the last look at all of them, every ``rescan_s``, or at a new domain.
        """
        if self._counting is None:
            threads = [t for found in self._threads.values() for t in found.by_index.values()]
            self._counting = Counter(thread.counts.state for thread in threads)
        return self._counting

    def _domain(self, resource: str, xml: DomainXml, rescan: bool) -> DomainReading:
        if xml.domain.problem is not None:
            return DomainReading(xml.domain, ())
        # What was known may be of an earlier life: then a second look finds the present one.
        failure = ""
        for _ in range(2 if resource in self._threads else 1):
            try:
                return self._read(resource, xml, rescan)
            except (OSError, ValueError) as exc:
                self._forget(resource)
                failure = f"its threads cannot be read: {exc}"
        return DomainReading(xml.domain, (), failure)

    def _read(self, resource: str, xml: DomainXml, rescan: bool) -> DomainReading:
        known = self._described.get(resource)
        closely = rescan or not known or known[0] is not xml
        threads = self._found(resource, xml.domain.name, closely)
        described, allowed = self._describe(resource, xml, threads.incarnation)
        vcpus = tuple(
            thread.read(allowed[index], closely=closely)
            for index, thread in threads.by_index.items()
            if index < xml.domain.vcpus
        )
        last = threads.reading
        if last is not None and not closely and _same(vcpus, last.vcpus):
            return last
        missing = None if vcpus else "no vCPU of it has a CPU cgroup of its own"
        if vcpus and threads.groupless:
            which = ", ".join(str(i) for i in sorted(threads.groupless))
            missing = f"vCPU {which} has no CPU cgroup of its own"
        group = threads.domain
        ours = group is not None and not xml.domain.weighted_elsewhere
        yields = group.yields() if ours and group else None
        reading = DomainReading(described.domain, vcpus, missing, yields)
        if reading != last:
            threads.reading = last = reading
        return last

    def _found(self, resource: str, name: str, rescan: bool) -> VcpuThreads:
        """The domain's threads, looked up again when its QEMU process is another one.

        Descriptors of a process that has gone say so, so its id is asked for now and then only.
        """
        threads = self._threads.get(resource)
        if threads is not None:
            if not (rescan or threads.unsettled):
                return threads
            if threads.by_index and self._rescans % THOROUGH_EVERY:
                threads.follow()  # of a process that has gone, which says so
                return threads
        path = self._run_path / f"{name}.pid"
        text = path.read_text().strip()
        if not text.isdecimal():
            raise ValueError(f"{path} holds no process id")
        pid = int(text)
        if threads is None or threads.incarnation != incarnation(self._root, pid):
            self._forget(resource)
            threads = self._threads[resource] = VcpuThreads(
                self._root, pid, self._mounted, self._counters
            )
        else:
            threads.rescan()
        return threads

    def _describe(
        self, resource: str, xml: DomainXml, life: str
    ) -> tuple[DomainXml, dict[int, frozenset[int]]]:
        """The domain with its incarnation, and what every vCPU may use; kept while both last."""
        known = self._described.get(resource)
        if known is not None and known[0] is xml and known[1].domain.incarnation == life:
            return known[1], known[2]
        usual = frozenset(p.id for p in self._topology.pcpus if not p.isolated)
        online = frozenset(p.id for p in self._topology.pcpus)
        wanted = (xml.pins.get(i, xml.cpuset) for i in range(xml.domain.vcpus))
        allowed = {i: usual if w is None else w & online for i, w in enumerate(wanted)}
        described = with_incarnation(xml, life)
        self._described[resource] = (xml, described, allowed)
        return described, allowed

    def apply(self, changes: Sequence[Change]) -> Mapping[VcpuKey, Failure]:
        """Carry changes out, each on its own; a vCPU that went meanwhile is no failure.

        A limit that replaces another one is written as a bandwidth period begins (``pacing``), so
        this may take one period, 0.1 s at the most.
        """
        failures: dict[VcpuKey, Failure] = {}
        later: dict[VcpuKey, tuple[Step, ...]] = {}
        for change in changes:
            at_once, paced = self._paced(change)
            failure = self._take(change.key, at_once)
            if failure is not None:
                failures[change.key] = failure
            elif paced:
                later[change.key] = paced

        def act(key: VcpuKey) -> None:
            if (failure := self._take(key, later[key])) is not None:
                failures[key] = failure

        groups = {key: t.group for key in later if (t := self._thread(key)) is not None}
        at_period_start(groups, act)
        return failures

    def precede(self, yielding: Mapping[str, bool]) -> Mapping[str, Failure]:
        """Make instances yield to all others on the host, or no longer (``cpu.idle``)."""
        failures = {}
        for resource, yields in yielding.items():
            threads = self._threads.get(resource)
            if threads is None or threads.domain is None:
                continue
            threads.reading = None
            try:
                threads.domain.set_yields(yields)
            except ActuationFailed as exc:
                failures[resource] = Failure("refused", str(exc))
            except OSError as exc:
                if exc.errno not in GONE:
                    reason = "read_only" if exc.errno in READ_ONLY else "refused"
                    failures[resource] = Failure(reason, f"cpu.idle: {exc.strerror}")
        return failures

    def _paced(self, change: Change) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """The steps to take at once, and those from the first one that replaces a limit on."""
        thread = self._thread(change.key)
        try:
            limited = thread is not None and thread.group.bandwidth() is not None
        except OSError:  # it went: taking the steps finds that out
            limited = False
        for i, step in enumerate(change.steps):
            if limited and step.bandwidth is not None:
                return change.steps[:i], change.steps[i:]
        return change.steps, ()

    def _thread(self, key: VcpuKey) -> VcpuThread | None:
        threads = self._threads.get(key[0])
        return threads.by_index.get(key[1]) if threads else None

    def _take(self, key: VcpuKey, steps: Sequence[Step]) -> Failure | None:
        thread = self._thread(key)
        if thread is None:
            return None
        try:
            for step in steps:
                thread.take(step)
        except ActuationFailed as exc:
            return Failure("refused", str(exc))
        except OSError as exc:
            if exc.errno in GONE:
                self._threads[key[0]].drop(key[1])
                return None
            reason = "read_only" if exc.errno in READ_ONLY else "refused"
            return Failure(reason, f"vCPU {key[1]} cannot be changed: {exc.strerror}")
        return None

    def release(self, resource: str) -> tuple[str, ...]:
        """Put back what the flavor alone asks for; what is left over, a sentence each."""
        seen = {r.domain.resource: r for r in self.observe().domains}
        reading = seen.get(resource)
        if reading is None:
            return ()
        left = [text for text in (reading.domain.problem, reading.failure) if text]
        for vcpu in reading.vcpus:
            for step in _undo(vcpu, reading.domain.limited_elsewhere):
                failure = self._take((resource, vcpu.index), (step,))
                if failure is not None:
                    left.append(failure.message)
        if reading.yields:
            left += [f.message for f in self.precede({resource: False}).values()]
        return tuple(f"{reading.domain.name}: {text}" for text in left)


def _same(vcpus: tuple[VcpuReading, ...], last: tuple[VcpuReading, ...]) -> bool:
    """Whether every vCPU's reading is the very one of the last time: none of them ran."""
    return len(vcpus) == len(last) and all(map(operator.is_, vcpus, last))


def _undo(vcpu: VcpuReading, limited_elsewhere: bool) -> tuple[Step, ...]:
    """Back to what libvirt leaves a vCPU; a quota of the definition's own stays."""
    steps = []
    if vcpu.pcpus != vcpu.allowed and vcpu.allowed:
        steps.append(Step(pcpus=vcpu.allowed))
    if vcpu.bandwidth is not None and not limited_elsewhere:
        steps.append(Step(bandwidth=None))
    return tuple(steps)
