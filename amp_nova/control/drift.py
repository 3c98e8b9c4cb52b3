"""Who else writes the limits: tell a foreign change, put it right a few times, then let go."""

from dataclasses import dataclass

from amp_nova.model.allocation import Grant
from amp_nova.model.observation import VcpuReading

REPAIRS_WITHIN_S = 60.0
YIELD_S = 300.0


@dataclass(frozen=True, slots=True)
class Quarrel:
    """Foreign changes of one instance that were put right lately, by time, in seconds."""

    repairs_s: tuple[float, ...] = ()
    yielded_until_s: float = 0.0


def foreign(expected: Grant, reading: VcpuReading) -> tuple[str, ...]:
    """What somebody else changed since the grant was carried out: ``quota``, ``affinity``.

    An affinity outside what Nova allows by now is Nova's own doing, not drift.
    """
    found = []
    if expected.limits and reading.bandwidth != expected.bandwidth:
        found.append("quota")
    if not expected.met_by(reading.pcpus) and expected.pcpus <= reading.allowed:
        found.append("affinity")
    return tuple(found)


def quarrel(before: Quarrel, now_s: float, repairs_max: int) -> Quarrel:
    """Note one more repair; beyond ``repairs_max`` within a minute, yield for five."""
    recent = tuple(t for t in before.repairs_s if now_s - t < REPAIRS_WITHIN_S)
    if len(recent) >= repairs_max:
        return Quarrel((), now_s + YIELD_S)
    return Quarrel((*recent, now_s))
