# SPDX-License-Identifier: Apache-2.0
"""Capacity lost to low clocks and busy siblings: CPU time worth less than its coefficient says.

A coefficient holds for a core at its nominal clock whose other hardware threads are idle. If cycles
are counted, and if the calibration measured what busy siblings cost, these two losses are accounted
separately from what a limit or neighbours took.
"""

from collections.abc import Mapping

from msgspec import Struct

from amp_nova.hardware.effective_speed import kept_ratio, slowing_siblings
from amp_nova.model.observation import Observation, Usage, VcpuKey
from amp_nova.model.topology import CoreType

CLOCK_TOLERANCE_RATIO = 0.02
"""A clock that is less than this below the nominal clock counts as nominal."""


class Losses(Struct, frozen=True):
    """Reference-core seconds lost, for the last two of ``delivery.CAUSES``."""

    frequency_ref_s: float = 0.0
    smt_ref_s: float = 0.0

    @property
    def total_ref_s(self) -> float:
        """The sum of both."""
        return self.frequency_ref_s + self.smt_ref_s


NOTHING = Losses()


def losses(used: Usage, coefficient: float, core_type: CoreType) -> Losses:
    """What an interval's CPU time lost, 0 if that is not measured; negative if it gained.

    ``coefficient``: what a second of this CPU time is worth at the nominal clock of ``core_type``,
    where all of the interval was spent, with idle siblings.
    """
    factor, nominal_hz = core_type.smt_busy_factor, core_type.clock_hz
    if factor is None and (nominal_hz is None or used.clock_hz is None):
        return NOTHING
    worth = used.run_s * coefficient
    clock_ratio = 1.0
    if nominal_hz is not None and used.clock_hz is not None:
        clock_ratio = used.clock_hz / nominal_hz
        # The coefficient was not measured at the base frequency, so turbo is not a gain over it.
        if not core_type.clock_calibrated and clock_ratio > 1.0 - CLOCK_TOLERANCE_RATIO:
            clock_ratio = 1.0
    by_clock = worth * kept_ratio(factor, 0.0, clock_ratio)
    kept = worth * kept_ratio(factor, used.siblings_busy_ratio, clock_ratio)
    return Losses(worth - by_clock, by_clock - kept)


def siblings_busy(
    observation: Observation, idle_before_ns: Mapping[int, int], wall_ns: int
) -> dict[VcpuKey, float]:
    """The share of time in which a sibling of its pCPU was busy, whatever ran there, by vCPU.

    Siblings count as busy independently of each other and of the vCPU. A vCPU that may run on
    several pCPUs meets the mean of their siblings, unless it is known where it ran last.
    """
    siblings_of = slowing_siblings(observation.topology)
    if wall_ns <= 0 or not siblings_of:
        return {}
    beside = {}
    for pcpu, siblings in siblings_of.items():
        idle = 1.0
        for sibling in siblings:
            before_ns, now_ns = idle_before_ns.get(sibling), observation.idle_ns.get(sibling)
            if before_ns is None or now_ns is None:
                idle = 0.0  # not known, as after it came online
            else:
                idle *= min(1.0, max(0.0, (now_ns - before_ns) / wall_ns))
        beside[pcpu] = 1.0 - idle
    means: dict[frozenset[int], float] = {}  # most vCPUs share one affinity
    busy = {}
    for reading in observation.domains:
        for vcpu in reading.vcpus:
            key = (reading.domain.resource, vcpu.index)
            if vcpu.last_pcpu is not None and vcpu.last_pcpu in vcpu.pcpus:
                busy[key] = beside.get(vcpu.last_pcpu, 0.0)
                continue
            if vcpu.pcpus not in means:
                ratios = [beside.get(p, 0.0) for p in vcpu.pcpus]
                means[vcpu.pcpus] = sum(ratios) / max(1, len(ratios))
            busy[key] = means[vcpu.pcpus]
    return busy
