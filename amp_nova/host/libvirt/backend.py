# SPDX-License-Identifier: Apache-2.0
"""The writer's other back end: libvirt's CPU tuning, for hosts where cgroups must not be written.

It calls ``virDomainSetSchedulerParametersFlags`` and ``virDomainPinVcpuFlags`` on the live domain,
never on its persistent definition. libvirt has one quota for all vCPUs of a domain.
"""

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace

import libvirt

from amp_nova.exceptions import ActuationFailed, HypervisorUnavailable
from amp_nova.host.libvirt.domain_xml import MARK_PREFIX, MARK_URI, NO_MARK, Mark, parse, read_mark
from amp_nova.host.libvirt.hypervisor import Hypervisor
from amp_nova.host.vcpu_threads import VcpuThread, VcpuThreads
from amp_nova.kernel.cgroups import PERIOD_US
from amp_nova.model import cpulist
from amp_nova.model.bandwidth import Bandwidth, Step
from amp_nova.model.observation import VcpuKey

LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
ELEMENT = libvirt.VIR_DOMAIN_METADATA_ELEMENT


class LibvirtBackend:
    """Writes through libvirt; a write takes a few milliseconds."""

    in_definition = True

    def __init__(self, hypervisor: Hypervisor) -> None:
        self._hypervisor = hypervisor

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
        shares = threads.domain.shares_of(weight)

        def write(domain: libvirt.virDomain) -> None:
            _mark(domain, lambda mark: replace(mark, shares=True))
            domain.setSchedulerParametersFlags({"cpu_shares": shares}, LIVE)

        self._hypervisor.change(resource, write, {"cputune.cpu_shares": shares})
        threads.domain.check(shares)

    def _limit(self, resource: str, thread: VcpuThread, limit: Bandwidth | None) -> None:
        if burst_us := thread.group.burst_us:
            raise ActuationFailed(f"it has a burst of {burst_us} us, which libvirt cannot clear")
        tunables = _bandwidth(thread, limit)

        def write(domain: libvirt.virDomain) -> None:
            _mark(domain, lambda mark: replace(mark, quota=True))
            domain.setSchedulerParametersFlags(tunables, LIVE)

        params = {f"cputune.{name}": value for name, value in tunables.items()}
        self._hypervisor.change(resource, write, params)
        thread.group.check(limit)

    def _pin(self, key: VcpuKey, pcpus: frozenset[int]) -> None:
        resource, index = key
        before = self._hypervisor.definition(resource).pins.get(index)
        cpumap = tuple(pcpu in pcpus for pcpu in range(max(pcpus) + 1))

        def write(domain: libvirt.virDomain) -> None:
            if parse(domain.XMLDesc(0)).pins.get(index) != before:
                # The thread moved before libvirt's event came: what looks foreign is Nova's.
                self._hypervisor.read_again(resource)
                raise HypervisorUnavailable("its pin in libvirt is newer than the one last read")
            _mark(domain, lambda mark: mark.pinned(index, pcpus, before))
            domain.pinVcpuFlags(index, cpumap, LIVE)

        params = {f"cputune.vcpupin{index}": cpulist.show(pcpus)}
        self._hypervisor.change(resource, write, params)


def _mark(domain: libvirt.virDomain, add: Callable[[Mark], Mark]) -> None:
    """Called before any other write, so that nothing is ever set without being marked.

    The mark in force is read each time: an earlier change may have been made late, after its
    caller stopped waiting for libvirt.
    """
    try:
        now = read_mark(ET.fromstring(domain.metadata(ELEMENT, MARK_URI, LIVE)))
    except libvirt.libvirtError as exc:
        if exc.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN_METADATA:
            raise
        now = NO_MARK
    mark = add(now)
    if mark != now:
        domain.setMetadata(ELEMENT, mark.xml(), MARK_PREFIX, MARK_URI, LIVE)


def _bandwidth(thread: VcpuThread, limit: Bandwidth | None) -> dict[str, int]:
    """The tunables of a limit, in the order whose intermediate limit is lower."""
    now = thread.group.bandwidth()
    if limit is None:
        return {"vcpu_quota": -1, "vcpu_period": PERIOD_US}
    quota, period = {"vcpu_quota": limit.quota_us}, {"vcpu_period": limit.period_us}
    if now is not None and now.period_us == limit.period_us:
        return quota  # every write refills the group
    if now is None or now.quota_us * now.period_us < limit.quota_us * limit.period_us:
        return {**period, **quota}
    return {**quota, **period}
