"""The writes that lead from what is in force to what shall be."""

from collections.abc import Iterable, Mapping

from amp_nova.model.allocation import Change, Grant, Step
from amp_nova.model.observation import VcpuKey, VcpuReading


def change(reading: VcpuReading, grant: Grant) -> Change | None:
    """What it takes to get from what holds to what shall hold; ``None`` when nothing.

    A limit is lowered before the vCPU moves to a faster core and raised after it left for a slower
    one. An equal limit is never written again: the write would refill the bandwidth and forgive the
    debt. That of a governed grant is written where it begins to hold: in another place, or for a
    vCPU without a limit.
    """
    steps = []
    if not grant.met_by(reading.pcpus):
        steps.append(Step(pcpus=grant.pcpus))
    begins = bool(steps) or reading.bandwidth is None
    if grant.limits and grant.bandwidth != reading.bandwidth and (begins or not grant.governed):
        lowered = grant.bandwidth is not None and (
            reading.bandwidth is None or grant.bandwidth.cores <= reading.bandwidth.cores
        )
        steps.insert(0 if lowered else len(steps), Step(bandwidth=grant.bandwidth))
    return Change(grant.key, tuple(steps), grant.why) if steps else None


def diff(current: Mapping[VcpuKey, VcpuReading], wanted: Iterable[Grant]) -> tuple[Change, ...]:
    """Changes from what holds to what shall hold; acting twice changes nothing."""
    changes = (change(current[g.key], g) for g in wanted if g.key in current)
    return tuple(c for c in changes if c is not None)
