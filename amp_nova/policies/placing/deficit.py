"""Turns: shares of core types made of whole vCPUs on whole pCPUs, one interval after the other.

In an interval a vCPU is on one core type only. What it was promised of a type and did not get is
owed to it, measured in its own running time; the largest debts, with what the next interval adds,
are served first. So over many intervals everybody has his share, off by about an interval at most,
however the shares are divided: kwon2011 section 3.2 does it with credits every 30 ms, an agent with
seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import Decision, HostView, Places, VcpuView
from amp_nova.policies.placing import assignment
from amp_nova.policies.placing.core_shares import Shares, room

OWED_MAX_S = 60.0
"""Debts do not grow beyond this: what cannot be paid for so long was never to be had."""
LAG_MAX_S = 10.0
TRIED_S = 20.0
USUAL_S = 30.0
_RATE_LEAST = 0.05


@dataclass(frozen=True, slots=True)
class Tally:
    """One vCPU so far: CPU seconds by core type, slowest first, what is owed of each, and its lag.

    ``due``: shares of its running time that it was promised for the interval that is past;
    ``lag_s``: CPU time that it is behind of an equal share of all pCPUs.
    """

    ran_s: tuple[float, ...]
    owed_s: tuple[float, ...]
    due: tuple[float, ...]
    lag_s: float = 0.0
    due_cores: float = 0.0

    sampled: bool = False
    """Whether its speedup was ever measured."""
    wanted_ratio: float | None = None
    """Share of time it usually wants to run, over about ``USUAL_S``; ``None``: not known yet."""

    @property
    def tried(self) -> bool:
        """Whether all was done to find out what it gains from the fastest core type.

        That is when it was measured on both, or had a long try on both and nothing came of it.
        """
        return self.sampled or (
            self.ran_s[-1] > TRIED_S and any(s > TRIED_S for s in self.ran_s[:-1])
        )


Tallies = Mapping[VcpuKey, Tally]


def _between(low: float, value: float, high: float) -> float:
    return min(high, max(low, value))


def tallies(view: HostView, memory: object = None) -> dict[VcpuKey, Tally]:
    """What was remembered, with the interval that is past entered.

    ``memory``: where tallies are only a part of what a policy remembers.
    """
    known = view.memory if memory is None else memory
    before = known if isinstance(known, dict) else {}
    nothing = (0.0,) * len(view.topology.core_types)
    made = {}
    for vcpu in view.vcpus:
        tally = before.get(vcpu.key)
        if tally is None or len(tally.ran_s) != len(nothing):
            tally = Tally(nothing, nothing, nothing)
        made[vcpu.key] = _entered(tally, vcpu, view.elapsed_s)
    return made


def _entered(tally: Tally, vcpu: VcpuView, elapsed_s: float) -> Tally:
    usual = _usual(tally.wanted_ratio, vcpu.demand_ratio, elapsed_s)
    tally = replace(tally, sampled=tally.sampled or vcpu.sampled, wanted_ratio=usual)
    if len(vcpu.cpu_s) != len(tally.ran_s):  # where it ran is not known
        return tally
    ran_s = sum(vcpu.cpu_s)
    owed_s = tally.owed_s
    if any(tally.due):
        owed_s = tuple(
            _between(-OWED_MAX_S, owed + due * ran_s - got, OWED_MAX_S)
            for owed, due, got in zip(owed_s, tally.due, vcpu.cpu_s, strict=True)
        )
    wanted = tally.due_cores if vcpu.demand_ratio is None else vcpu.demand_ratio
    lag_s = tally.lag_s + min(wanted, tally.due_cores) * elapsed_s - ran_s
    return replace(
        tally,
        ran_s=tuple(a + b for a, b in zip(tally.ran_s, vcpu.cpu_s, strict=True)),
        owed_s=owed_s,
        lag_s=_between(-LAG_MAX_S, lag_s, LAG_MAX_S),
    )


def _usual(before: float | None, now: float | None, elapsed_s: float) -> float | None:
    if before is None or now is None:
        return before if now is None else now
    return before + min(1.0, elapsed_s / USUAL_S) * (now - before)


def take(view: HostView, shares: Shares, so_far: Tallies | None = None) -> Decision:
    """Seat every vCPU that has a share, so that what it gets follows what it is promised."""
    so_far = tallies(view) if so_far is None else so_far
    made = {}
    claims = {}
    for vcpu in view.vcpus:
        tally = so_far[vcpu.key]
        share = shares.get(vcpu.key, ())
        total = sum(share)
        due = tuple(s / total for s in share) if total > 0.0 else (0.0,) * len(tally.ran_s)
        made[vcpu.key] = replace(tally, due=due, due_cores=total)
        if share:
            rate = _rate(vcpu, view.elapsed_s, total)
            claims[vcpu.key] = tuple(
                owed / rate + d * view.interval_s for owed, d in zip(tally.owed_s, due, strict=True)
            )
    if not view.asymmetric:
        return Decision({}, made)
    places = assignment.place(view, claims, {k: t.lag_s for k, t in made.items()})
    return Decision(places, made, early=True)


def queue(
    view: HostView,
    so_far: Tallies,
    claim: Mapping[VcpuKey, float],
    threshold: float = 0.0,
) -> tuple[Places, dict[VcpuKey, Tally]]:
    """Seat by one claim for all core types: the strongest have the fastest; and the new tallies.

    For policies that keep an account of their own and promise no shares.
    """
    here = room(view)
    each = {v.key: here.each_cores for v in here.vcpus}
    made = {key: replace(t, due_cores=each.get(key, 0.0)) for key, t in so_far.items()}
    if not view.asymmetric:
        return {}, made
    types = len(view.topology.core_types)
    claims = {key: (claim[key],) * types for key in each}
    return assignment.place(view, claims, {k: t.lag_s for k, t in made.items()}, threshold), made


def _rate(vcpu: VcpuView, elapsed_s: float, each_cores: float) -> float:
    """How fast its running time passes: debts of those who run little are served as soon."""
    ran_s = sum(vcpu.cpu_s)
    rate = ran_s / elapsed_s if ran_s > 0.0 and elapsed_s > 0.0 else each_cores
    return _between(_RATE_LEAST, rate, 1.0)
