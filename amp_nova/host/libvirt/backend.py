"""The writer's other back end: libvirt's CPU tuning, for hosts where cgroups must not be written.

It calls ``virDomainSetSchedulerParametersFlags`` and ``virDomainPinVcpuFlags`` on the live domain,
never on its persistent definition. libvirt has one quota for all vCPUs of a domain.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import libvirt

from amp_nova.exceptions import ActuationFailed
from amp_nova.guard.kernel import PERIOD_US
from amp_nova.host.libvirt.domain_xml import MARK_PREFIX, MARK_URI, NO_MARK, Mark
from amp_nova.host.libvirt.hypervisor import Hypervisor
from amp_nova.host.vcpu_threads import VcpuThread, VcpuThreads
from amp_nova.model import cpulist
from amp_nova.model.bandwidth import Bandwidth, Step
from amp_nova.model.observation import VcpuKey

LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
Write = Callable[[libvirt.virDomain], None]


class LibvirtBackend:
    """Writes through libvirt; a write takes a few milliseconds."""

    in_definition = True

    def __init__(self, hypervisor: Hypervisor) -> None:
        self._hypervisor = hypervisor
        self._marks: dict[str, tuple[int, Mark]] = {}
        """The marks as last written, with the id of the running domain."""

    def take(self, key: VcpuKey, thread: VcpuThread, step: Step) -> None:
        """Write one step; a limit applies to every vCPU of the domain."""
        if step.pcpus is not None:
            self._pin(key, step.pcpus)
        else:
            self._limit(key[0], thread, step.bandwidth)

    def set_weight(self, resource: str, threads: VcpuThreads, weight: int) -> None:
        """Set a domain's ``cpu_shares``, whose unit is that of the cgroup version."""
        if threads.domain is None:
            return
        ours, shares = self._mark(resource), threads.domain.shares_of(weight)
        made = replace(ours, shares=True)

        def write(domain: libvirt.virDomain) -> None:
            _write_mark(domain, ours, made)
            domain.setSchedulerParametersFlags({"cpu_shares": shares}, LIVE)

        self._write(resource, write, {"cputune.cpu_shares": shares}, made)
        threads.domain.check(shares)

    def _limit(self, resource: str, thread: VcpuThread, wanted: Bandwidth | None) -> None:
        if burst_us := thread.group.burst_us:
            raise ActuationFailed(f"it has a burst of {burst_us} us, which libvirt cannot end")
        ours, tunables = self._mark(resource), _bandwidth(thread, wanted)
        made = replace(ours, quota=True)

        def write(domain: libvirt.virDomain) -> None:
            _write_mark(domain, ours, made)
            domain.setSchedulerParametersFlags(tunables, LIVE)

        told = {f"cputune.{name}": value for name, value in tunables.items()}
        self._write(resource, write, told, made)
        thread.group.check(wanted)

    def _pin(self, key: VcpuKey, pcpus: frozenset[int]) -> None:
        resource, index = key
        ours = self._mark(resource)
        made = ours.pinned(index, pcpus, self._hypervisor.definition(resource).pins.get(index))
        cpumap = tuple(pcpu in pcpus for pcpu in range(max(pcpus) + 1))

        def write(domain: libvirt.virDomain) -> None:
            _write_mark(domain, ours, made)
            domain.pinVcpuFlags(index, cpumap, LIVE)

        self._write(resource, write, {f"cputune.vcpupin{index}": cpulist.show(pcpus)}, made)

    def _mark(self, resource: str) -> Mark:
        number, known = self._marks.get(resource, (-1, NO_MARK))
        if number == self._hypervisor.number(resource):
            return known
        return self._hypervisor.definition(resource).mark

    def _write(self, resource: str, write: Write, told: Mapping[str, object], made: Mark) -> None:
        self._hypervisor.change(resource, write, told)
        self._marks[resource] = self._hypervisor.number(resource), made


def _write_mark(domain: libvirt.virDomain, now: Mark, wanted: Mark) -> None:
    """Called before any other write, so that nothing is ever set without being marked."""
    if wanted != now:
        kind = libvirt.VIR_DOMAIN_METADATA_ELEMENT
        domain.setMetadata(kind, wanted.xml(), MARK_PREFIX, MARK_URI, LIVE)


def _bandwidth(thread: VcpuThread, wanted: Bandwidth | None) -> dict[str, int]:
    """The tunables of a limit, in the order whose intermediate limit is lower."""
    now = thread.group.bandwidth()
    if wanted is None:
        return {"vcpu_quota": -1, "vcpu_period": PERIOD_US}
    quota, period = {"vcpu_quota": wanted.quota_us}, {"vcpu_period": wanted.period_us}
    if now is not None and now.period_us == wanted.period_us:
        return quota  # every write refills the group
    if now is None or now.quota_us * now.period_us < wanted.quota_us * wanted.period_us:
        return {**period, **quota}
    return {**quota, **period}
