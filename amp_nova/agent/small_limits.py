"""Which vCPUs have limits so small that the kernel's tick is too coarse for them."""

from collections.abc import Mapping, Sequence

from amp_nova.core import charge
from amp_nova.core.charge import Small
from amp_nova.core.contract import Promise
from amp_nova.core.observation import DomainReading, Observation, VcpuKey


class SmallLimits:
    """Remembers from cycle to cycle which small limits stop their vCPUs."""

    def __init__(self, most: int) -> None:
        """``most``: so many vCPUs at a time."""
        self._most = most
        self._read: dict[str, DomainReading] = {}
        self._known: dict[VcpuKey, Small] = {}

    def binding(self, seen: Observation, promises: Mapping[VcpuKey, Promise]) -> Sequence[VcpuKey]:
        """The vCPUs to charge until the next cycle (``core.charge``)."""
        if not self._most:
            return ()
        read = {reading.domain.resource: reading for reading in seen.domains}
        for resource in self._read.keys() - read.keys():
            self._known = {key: s for key, s in self._known.items() if key[0] != resource}
        for resource, reading in read.items():
            if self._read.get(resource) is not reading:  # else none of its vCPUs ran
                self._enter(reading, promises, seen.time_ns)
        self._read = read
        return charge.chosen(self._known, seen.time_ns, self._most)

    def _enter(
        self, reading: DomainReading, promises: Mapping[VcpuKey, Promise], time_ns: int
    ) -> None:
        for vcpu in reading.vcpus:
            key = (reading.domain.resource, vcpu.index)
            grant, limit = promises[key].grant, vcpu.bandwidth
            kept = grant is not None and grant.limits and not grant.governed
            if kept and limit is not None and limit.cores <= charge.SHARE_MAX:
                known = self._known.get(key)
                self._known[key] = charge.seen(known, limit.cores, vcpu.throttled_ns, time_ns)
            else:
                self._known.pop(key, None)
