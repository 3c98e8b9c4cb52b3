# SPDX-License-Identifier: Apache-2.0
"""The limit of every vCPU, and what it carries over from cycle to cycle.

A vCPU's share (``control.entitlement``) is its limit as long as nothing is carried over. In
addition:

* A second of CPU time may be worth less than calibrated, because siblings or a low clock slow the
  pCPU down (``hardware.effective_speed``); and of a booking in instructions, which are counted,
  also because of the work that the vCPU does. So the limit is what the booking takes at the worth
  that was measured last. Where none has been measured yet, it is as low as admission assumes, or
  that of nominal Ips.
* What a wrong limit or a slow pCPU cost is made up for, but not what neighbours took. An excess is
  withdrawn.
* A vCPU may bank booked time that it does not use (``amp:burst_s``) and spend it later. CFS
  bandwidth forgets unused quota at the end of each period, so the bank is kept here.
* While somebody else keeps moving a vCPU, its limit falls to what its booking means where it is. It
  does not rise again meanwhile: whoever goes to and fro would gain from that.
* An agent that starts or resumes control adopts the limits that it finds. A limit below the booking
  is raised to the booking at once. Every other change is made step by step, so that no guest
  notices the restart.

All that is owed is one number, in seconds of the booking: what the vCPU may use beyond it or, if
negative, has to pay back. It changes once in a cycle, and that of a vCPU whose instructions are
counted several times, because the worth of its CPU time changes with its work.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from msgspec import Struct, structs

from amp_nova.control.context import Context, Terms
from amp_nova.control.entitlement import Entitlement, Entitlements
from amp_nova.model.allocation import Allocations
from amp_nova.model.bandwidth import (
    HYSTERESIS_RATIO,
    TICK_S,
    TOLERANCE,
    Bandwidth,
    bandwidth,
    period_us,
)
from amp_nova.model.delivered import Delivery, delivery
from amp_nova.model.observation import Usage, VcpuKey, VcpuSample
from amp_nova.model.topology import Topology

OVERDRAFT_S = 1.0
"""The most that is made up for or withdrawn, in seconds of the booking."""
CARRY_S = 0.2
"""The most that is made up for if instructions are counted: a wrong limit lasts no longer."""
REPAY_S = 4.0
"""Time in which a booking in reference cores is paid back."""
COUNTED_REPAY_S = 0.1
"""The same of one whose instructions are counted, or the time between two samples if that is
longer."""
EXCESS_RATIO = 1.1
"""The highest limit of a booking in reference cores that makes up for something, relative to the
worst case that admission assumes, or to what the booking takes now."""
LEAST_RATIO = 0.2
"""A vCPU keeps at least this part of its booking while it pays back."""
WORTH_LEAST_RATIO = 0.01
"""CPU time never counts as worth less than this, relative to its calibration."""
COUNTED_HYSTERESIS_RATIO = 0.02
"""As ``HYSTERESIS_RATIO``, but for limits that are decided several times in a cycle. What would
change them by no more than twice this is not paid back yet: that takes two writes."""
GAP_MAX_S = 1.0
"""Samples further apart are not compared: the agent hung, the machine slept, a clock jumped."""
RUN_LEAST_S = 0.000_1
"""Instructions per CPU second cannot be measured over less CPU time than this."""
STEP_RATIO = 0.1
"""The most by which an adopted limit may change in one cycle, relative to its value."""


class Carried(Struct, frozen=True):
    """What the next limit of a vCPU depends on, besides its share.

    ``balance_s``: what it may use beyond its booking, in seconds of it, negative if it has to pay
    back; ``worth_ratio``: what its CPU time was worth lately, relative to the calibration, on
    ``pcpu``, its home, unless it is counted; ``pending_s``: time off the pCPU that is either a wait
    which the kernel has yet to report, or no demand.
    """

    balance_s: float = 0.0
    worth_ratio: float = 1.0
    pcpu: int | None = None
    pending_s: float = 0.0

    def after(self, interval: Delivery, entitlement: Entitlement) -> "Carried":
        """The state after what was delivered in an interval; ``self`` if nothing changes."""
        share, booking = entitlement.share, entitlement.booking
        booked = booking.refcores or booking.ips
        if share is None or booked is None:
            return self
        got_s, worth_ratio = interval.got / booked, self.worth_ratio
        if interval.worth > 0.0:
            worth_ratio = interval.got / interval.worth
        short_s = interval.owed / booked - got_s
        # What neighbours took is not made up for, but it offsets an earlier excess.
        limited_s = max(0.0, interval.limited / booked, -self.balance_s)
        balance_s = self.balance_s + min(short_s, limited_s)
        # Time without demand pays an excess back, and then fills the bank.
        unused_s = max(0.0, interval.wall_s - max(interval.demand_s, got_s))
        balance_s = max(balance_s, min(balance_s + unused_s, share.burst_s))
        most_s = max(share.burst_s, CARRY_S if share.follows == "counts" else OVERDRAFT_S)
        balance_s = max(-OVERDRAFT_S, min(most_s, balance_s))
        if (balance_s, worth_ratio) == (self.balance_s, self.worth_ratio):
            return self
        return structs.replace(self, balance_s=balance_s, worth_ratio=worth_ratio)

    def at(self, entitlement: Entitlement) -> "Carried":
        """The same at its home, which is as slow as admission assumes until it is measured.

        What instructions say of CPU time is right on any pCPU.
        """
        share, home = entitlement.share, entitlement.home
        if share is None or share.follows != "speed" or self.pcpu == home.pcpu:
            return self
        worst = min(1.0, share.cores / home.cores) if share.cores and home.cores else 1.0
        return structs.replace(self, worth_ratio=worst, pcpu=home.pcpu)


class Limits(Struct, frozen=True):
    """What limits depend on from one cycle to the next.

    ``carried``: by vCPU whose limit varies; ``delivered``: the deliveries that it takes into
    account; ``samples``: of the vCPUs that are sampled between cycles, the last ones; ``between``:
    the limits written since the last cycle; ``adopting``: the vCPUs whose adopted limits are still
    being changed step by step, ``None`` before the limits in force have been adopted.
    """

    carried: Mapping[VcpuKey, Carried] = MappingProxyType({})
    delivered: Mapping[VcpuKey, Delivery] = MappingProxyType({})
    samples: Mapping[VcpuKey, VcpuSample] = MappingProxyType({})
    between: Mapping[VcpuKey, Bandwidth | None] = MappingProxyType({})
    adopting: frozenset[VcpuKey] | None = None


class Steady(Struct, frozen=True):
    """Entitlements whose limits are those of their shares, and the vCPUs whose limits vary."""

    entitlements: Entitlements
    varying: tuple[VcpuKey, ...]


def steady(
    entitlements: Entitlements, topology: Topology, terms: Terms, *, speeds_vary: bool
) -> Steady:
    """Limit every vCPU to its share.

    ``speeds_vary``: whether limits follow what busy siblings and low clocks cost.
    """
    limited, varying = {}, []
    for key, entitlement in entitlements.items():
        share = entitlement.share
        if share is not None:
            pcpus, limit = entitlement.pcpus, None
            cores = share.on(None if pcpus is None else topology.only_type(pcpus))
            if cores is not None:
                limit = bandwidth(cores, share.period_us or period_us(min(1.0, cores)))
            entitlement = structs.replace(entitlement, limit=limit)
            speed_matters = share.follows == "speed" and (speeds_vary or share.burst_s)
            if speed_matters or share.follows in ("counts", "falls"):
                varying.append(key)
        limited[key] = entitlement
    return Steady(_per_instance(limited) if terms.one_limit else limited, tuple(varying))


def carry(before: Limits, limited: Steady, delivered: Mapping[VcpuKey, Delivery]) -> Limits:
    """What limits depend on after one more interval.

    ``delivered``: what the vCPUs whose limits vary have been delivered. Those that are sampled
    between cycles have it in their samples.
    """
    if not limited.varying and not before.carried:
        return before
    entitlements = limited.entitlements
    instances = {resource for resource, _ in entitlements}
    # A vCPU that cannot be read in this cycle keeps what it carries.
    unread = [k for k in before.carried if k not in entitlements and k[0] in instances]
    carried = {key: before.carried[key] for key in unread}
    sums = {key: before.delivered[key] for key in unread if key in before.delivered}
    for key in limited.varying:
        if entitlements[key].governed_by == "excluded":
            continue
        state = before.carried.get(key) or Carried()
        if key not in before.samples:
            sums[key], last = delivered[key], before.delivered.get(key)
            if last is not None and last != sums[key]:
                state = state.after(sums[key].since(last), entitlements[key])
        carried[key] = state.at(entitlements[key])
    return structs.replace(before, carried=carried, delivered=sums)


def decide(
    limited: Steady, carried: Mapping[VcpuKey, Carried], now: Allocations, context: Context
) -> Entitlements:
    """The limit of every vCPU until the next cycle; ``now``: what is in force."""
    if not limited.varying:
        return limited.entitlements
    varied = dict(limited.entitlements)
    for key in limited.varying:
        entitlement, limit = varied[key], now[key].bandwidth
        if entitlement.governed_by == "excluded":
            limit = min(limit, entitlement.limit, key=_cores)
            varied[key] = structs.replace(entitlement, limit=limit)
        else:
            varied[key] = _following(entitlement, carried[key], limit, context.terms)
    return _per_instance(varied) if context.terms.one_limit else varied


def _following(
    entitlement: Entitlement, state: Carried, now: Bandwidth | None, terms: Terms
) -> Entitlement:
    """The limit with which the balance is repaid, or the present one if that is about as good."""
    share, home = entitlement.share, entitlement.home
    if share is None or share.cores is None:
        return entitlement
    cores = share.cores / max(state.worth_ratio, WORTH_LEAST_RATIO)
    counted = share.follows == "counts"
    repay_s, most, hysteresis_ratio = REPAY_S, 1.0, HYSTERESIS_RATIO
    if counted:
        hysteresis_ratio = COUNTED_HYSTERESIS_RATIO
        repay_s = max(COUNTED_REPAY_S, terms.tick_s)
    elif state.balance_s <= 0.0 or not share.burst_s:
        most = EXCESS_RATIO * max(home.cores or 0.0, cores)
    if share.burst_s and state.balance_s > 0.0:
        repay_s = min(repay_s, terms.cycle_s)
        most = max(cores, home.max_cores or 0.0)
    repays = state.balance_s / repay_s
    if counted and abs(repays) <= 2.0 * COUNTED_HYSTERESIS_RATIO:
        repays = 0.0
    limit_cores = cores * max(LEAST_RATIO, 1.0 + repays)
    limit = bandwidth(min(limit_cores, most, 1.0), share.period_us or period_us(min(1.0, cores)))
    if _close(now, limit, hysteresis_ratio * min(1.0, cores)):
        limit = now
    banked_s = max(0.0, state.balance_s) if share.burst_s else 0.0
    reason = entitlement.reason
    if not counted and abs(state.worth_ratio - 1.0) >= 0.01:
        reason = f"{reason}, at {state.worth_ratio:.2f} of its speed lately"
    return structs.replace(entitlement, limit=limit, banked_s=banked_s, reason=reason)


def measured(
    limits: Limits,
    entitlements: Entitlements,
    samples: Mapping[VcpuKey, VcpuSample],
    terms: Terms,
) -> tuple[Limits, dict[VcpuKey, Bandwidth | None]]:
    """What limits depend on after one more sample of counted vCPUs, and the limits that change."""
    carried, changed = dict(limits.carried), {}
    for key, sample in samples.items():
        was, state, entitlement = limits.samples.get(key), carried.get(key), entitlements[key]
        if was is None or state is None:
            continue
        limit = limits.between.get(key, entitlement.limit)
        carried[key] = _counted(state, entitlement, limit, was, sample)
        if carried[key] is not state:
            new = _following(entitlement, carried[key], limit, terms).limit
            if new != limit:
                changed[key] = new
    return structs.replace(limits, carried=carried, samples=samples), changed


def _counted(
    state: Carried,
    entitlement: Entitlement,
    limit: Bandwidth | None,
    was: VcpuSample,
    now: VcpuSample,
) -> Carried:
    """The state after what a vCPU did between two samples.

    The kernel reports a wait when it ends. So time off the pCPU counts as a wait up to the longest
    that the limit can cause, and beyond that as no demand.
    """
    share, ips = entitlement.share, entitlement.booking.ips
    wall_s, run_s = (now.time_ns - was.time_ns) / 1e9, (now.run_ns - was.run_ns) / 1e9
    wait_s, got = (now.wait_ns - was.wait_ns) / 1e9, float(now.instructions - was.instructions)
    jumped = not 0.0 < wall_s <= GAP_MAX_S or run_s < 0.0 or wait_s < 0.0 or got < 0.0
    if jumped or share is None or not share.cores or not ips:
        return state
    cores, off_s = _cores(limit), max(0.0, wall_s - run_s)
    longest_s = (limit.period_us / 1e6 if limit else 0.0) + TICK_S / cores
    pending_s = max(0.0, state.pending_s + off_s - wait_s)
    idle_s = min(max(0.0, pending_s - longest_s), off_s)
    used = Usage(wall_s, run_s, off_s - idle_s, 0.0)
    worth = run_s * ips / share.cores if run_s >= RUN_LEAST_S and got else 0.0
    state = structs.replace(state, pending_s=min(pending_s - idle_s, longest_s))
    return state.after(delivery(used, cores, ips, worth, got), entitlement)


def without_balance(
    limits: Limits, entitlements: Entitlements, terms: Terms
) -> dict[VcpuKey, Bandwidth | None]:
    """The limits that change if nothing is to be made up for or withdrawn."""
    changed = {}
    for key, state in limits.carried.items():
        entitlement = entitlements.get(key)
        if entitlement is not None and entitlement.governed_by != "excluded":
            now = limits.between.get(key, entitlement.limit)
            limit = _following(entitlement, structs.replace(state, balance_s=0.0), now, terms).limit
            if limit != now:
                changed[key] = limit
    return changed


def _close(now: Bandwidth | None, new: Bandwidth | None, cores: float) -> bool:
    """Whether a limit need not be written, because the one in force is within so many cores."""
    if now is not None and new is not None and now.period_us != new.period_us:
        return False
    return abs(_cores(new) - _cores(now)) <= cores


def _cores(limit: Bandwidth | None) -> float:
    return 1.0 if limit is None else limit.cores


def _per_instance(entitlements: Entitlements) -> Entitlements:
    """The highest limit of an instance's vCPUs for all of them, as libvirt's quota requires.

    Their limits differ slightly if busy siblings slow some of them down.
    """
    limits: dict[str, set[Bandwidth | None]] = {}
    for (resource, _), entitlement in entitlements.items():
        if entitlement.share is not None:
            limits.setdefault(resource, set()).add(entitlement.limit)
    several = {r: max(some, key=_cores) for r, some in limits.items() if len(some) > 1}
    return {
        key: structs.replace(entitlement, limit=several[key[0]])
        if entitlement.share is not None and key[0] in several
        else entitlement
        for key, entitlement in entitlements.items()
    }


def adopt(
    entitlements: Entitlements, now: Allocations, limits: Limits
) -> tuple[Entitlements, Limits]:
    """Entitlements whose adopted limits change step by step, and what is still to be adopted."""
    adopting: Collection[VcpuKey] | None = limits.adopting
    if adopting is None:
        adopting = [key for key, allocation in now.items() if allocation.bandwidth is not None]
    elif not adopting:
        return entitlements, limits
    eased, pending = dict(entitlements), set()
    for key in adopting:
        entitlement = entitlements.get(key)
        limit = now[key].bandwidth if key in now else None
        if entitlement is None or entitlement.share is None or limit is None:
            continue
        first = _step(entitlement, limit, entitlement.limit)
        if first != entitlement.limit:
            pending.add(key)
            eased[key] = structs.replace(entitlement, limit=first)
    limits = structs.replace(limits, adopting=frozenset(pending))
    return eased if pending else entitlements, limits


def _step(entitlement: Entitlement, limit: Bandwidth, new: Bandwidth | None) -> Bandwidth | None:
    """The next limit on the way from the limit in force to the new one."""
    now, target = min(1.0, limit.cores), _cores(new)
    booked = entitlement.home.cores
    toward = now if booked is None else min(max(booked, min(now, target)), max(now, target))
    low, high = (1.0 - STEP_RATIO) * now, (1.0 + STEP_RATIO) * now
    reached = min(max(target, min(low, toward)), max(high, toward))
    if abs(reached - target) <= TOLERANCE:
        return new
    period = limit.period_us if new is None else new.period_us
    return bandwidth(reached, period)
