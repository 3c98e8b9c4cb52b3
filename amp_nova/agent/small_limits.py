"""Which vCPUs have limits so small that the kernel's tick, or a guess, is too coarse for them."""

from collections.abc import Mapping

from amp_nova.agent.fast import FastLoop
from amp_nova.core import budget, charge
from amp_nova.core.charge import Small
from amp_nova.core.contract import Promise
from amp_nova.core.observation import DomainReading, Observation, VcpuKey


class SmallLimits:
    """Remembers from cycle to cycle which small limits stop their vCPUs."""

    def __init__(self, most: int, most_ips: int = 0) -> None:
        """So many vCPUs at a time: that book reference cores, and that book Ips."""
        self._most, self._most_ips = most, most_ips
        self._read: dict[str, DomainReading] = {}
        self._known: dict[VcpuKey, Small] = {}
        self._rationed: Mapping[VcpuKey, float] = {}

    def binding(
        self,
        seen: Observation,
        promises: Mapping[VcpuKey, Promise],
        fast: FastLoop | None,
    ) -> Mapping[VcpuKey, float | None]:
        """The vCPUs to charge until the next cycle (``core.charge``).

        Of those that ``fast`` governs, with the Ips to give them (``core.budget``).
        """
        if not self._most and not self._most_ips:
            return {}
        read = {reading.domain.resource: reading for reading in seen.domains}
        for resource in self._read.keys() - read.keys():
            self._known = {key: s for key, s in self._known.items() if key[0] != resource}
        rations = fast.rations() if fast is not None and self._most_ips else {}
        for resource, reading in read.items():
            if self._read.get(resource) is not reading:  # else none of its vCPUs ran
                self._enter(reading, promises, rations, seen.time_ns)
        self._read = read
        booked = {key: small for key, small in self._known.items() if key in rations}
        limited = {key: small for key, small in self._known.items() if key not in rations}
        chosen = charge.chosen(booked, seen.time_ns, self._most_ips)
        self._rationed = {key: rations[key] for key in chosen}
        charged = charge.chosen(limited, seen.time_ns, self._most)
        return {**dict.fromkeys(charged), **self._rationed}

    def _enter(
        self,
        reading: DomainReading,
        promises: Mapping[VcpuKey, Promise],
        rations: Mapping[VcpuKey, float],
        time_ns: int,
    ) -> None:
        for vcpu in reading.vcpus:
            key = (reading.domain.resource, vcpu.index)
            grant, limit = promises[key].grant, vcpu.bandwidth
            kept = grant is not None and grant.limits and (not grant.governed or key in rations)
            most = charge.SHARE_MAX
            if key in rations:
                most = budget.SHARE_LEAVE if key in self._rationed else budget.SHARE_MAX
            if kept and limit is not None and limit.cores <= most:
                known = self._known.get(key)
                self._known[key] = charge.seen(known, limit.cores, vcpu.throttled_ns, time_ns)
            else:
                self._known.pop(key, None)
