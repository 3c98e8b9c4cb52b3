# SPDX-License-Identifier: Apache-2.0
"""The limit of every vCPU, and what it carries over from cycle to cycle.

Quotas are decided here; between cycles, the fast loop adjusts those of Ips. A vCPU's share
(``control.entitlement``) is its limit as long as nothing is carried over. In addition:

* A vCPU may bank booked time that it does not use (``amp:burst_s``) and spend it later. CFS
  bandwidth forgets unused quota at the end of each period, so the bank is kept here. What it runs
  beyond its booking is withdrawn.
* If siblings or a low clock slow a pCPU down (``hardware.effective_speed``), a share of it is worth
  less than the booking. So the limit is what the booking takes at the speed of the last cycle, or
  at the lowest that admission assumes on a pCPU where none has been measured yet, and what that
  missed is carried over. Only what slow pCPUs cost is made up for, not what neighbours took.
* The limit of a vCPU whose instructions are counted is the one that its controller set last
  (``control.ips_controller``), scaled by nominal Ips if the vCPU moves to another core type.
* While somebody else keeps moving a vCPU, its limit falls to what its booking means where it is. It
  does not rise again meanwhile: whoever goes to and fro would gain from that.
* An agent that starts or resumes control adopts the limits that it finds. A limit below the booking
  is raised to the booking at once. Every other change is made step by step, so that no guest
  notices the restart.

Both kinds of balance are one number, in reference-core seconds: what the vCPU may use beyond its
booking or, if negative, has to pay back.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from msgspec import Struct, structs

from amp_nova.control import ips_controller
from amp_nova.control.context import Context, Share, Terms
from amp_nova.control.entitlement import Entitlement, Entitlements
from amp_nova.control.ips_controller import OVERDRAFT_S
from amp_nova.model.allocation import Allocation, Allocations
from amp_nova.model.bandwidth import (
    HYSTERESIS_RATIO,
    TOLERANCE,
    Bandwidth,
    bandwidth,
    period_us,
)
from amp_nova.model.delivered import Delivery
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import Topology

REPAY_S = 4.0
"""Time in which what slow pCPUs cost, or gave, is paid back."""
EXCESS_RATIO = 1.1
"""The highest limit of a slowed vCPU, relative to the worst case that admission assumes."""
LEAST_RATIO = 0.5
"""A vCPU keeps at least this part of its booking while it pays back."""
SPEED_LEAST_RATIO = 0.01
"""No pCPU counts as slower than this, relative to its coefficient."""
STEP_RATIO = 0.1
"""The most by which an adopted limit may change in one cycle, relative to its value."""


class Carried(Struct, frozen=True):
    """What the next limit of a vCPU depends on, besides its share.

    ``balance_ref_s``: what it may use beyond its booking, negative if it has to pay back;
    ``kept_ratio``: the speed of ``pcpu``, its home, in the last cycle, relative to its coefficient.
    """

    balance_ref_s: float = 0.0
    kept_ratio: float = 1.0
    pcpu: int | None = None

    def after(self, interval: Delivery, entitlement: Entitlement) -> "Carried":
        """The state after what was delivered in an interval; ``self`` if nothing changes."""
        share, refcores = entitlement.share, entitlement.booking.refcores
        if share is None or refcores is None:
            return self
        kept_ratio = self.kept_ratio
        got_ref_s = interval.worth_ref_s - interval.lost_ref_s
        if share.follows == "bank":
            most_s = share.burst_s
            balance_ref_s = _banked(self, interval, refcores, got_ref_s)
        else:
            most_s = OVERDRAFT_S
            balance_ref_s = _owed(self, interval, got_ref_s)
            if interval.worth_ref_s > 0.0:
                kept_ratio = got_ref_s / interval.worth_ref_s
        balance_ref_s = max(-refcores * OVERDRAFT_S, min(refcores * most_s, balance_ref_s))
        if (balance_ref_s, kept_ratio) == (self.balance_ref_s, self.kept_ratio):
            return self
        return Carried(balance_ref_s, kept_ratio, self.pcpu)

    def at(self, entitlement: Entitlement) -> "Carried":
        """The same at its home, which is as slow as admission assumes until it is measured."""
        share, home = entitlement.share, entitlement.home
        if share is None or share.follows != "speed" or self.pcpu == home.pcpu:
            return self
        worst = min(1.0, share.cores / home.cores) if share.cores and home.cores else 1.0
        return structs.replace(self, kept_ratio=worst, pcpu=home.pcpu)


def _banked(before: Carried, interval: Delivery, refcores: float, got_ref_s: float) -> float:
    """The balance after an interval: what was not wanted is banked, an excess is withdrawn."""
    unused_ref_s = refcores * (interval.wall_s - interval.demand_s)
    excess_ref_s = max(0.0, got_ref_s - refcores * interval.demand_s)
    return before.balance_ref_s + unused_ref_s - excess_ref_s


def _owed(before: Carried, interval: Delivery, got_ref_s: float) -> float:
    """The balance after an interval in which a slow pCPU may have cost capacity."""
    # What neighbours took is not made up for, but it offsets an earlier excess.
    short_ref_s = interval.owed_ref_s - got_ref_s
    lost_ref_s = max(0.0, interval.lost_ref_s, -before.balance_ref_s)
    return before.balance_ref_s + min(short_ref_s, lost_ref_s)


class Limits(Struct, frozen=True):
    """What limits depend on from one cycle to the next.

    ``carried``: by vCPU whose limit follows a bank or the speed of its pCPU; ``delivered``: the
    deliveries that it takes into account; ``counted``: the limits that the Ips controllers set
    last; ``adopting``: the vCPUs whose adopted limits are still
    being changed step by step, ``None`` before the limits in force have been adopted.
    """

    carried: Mapping[VcpuKey, Carried] = MappingProxyType({})
    delivered: Mapping[VcpuKey, Delivery] = MappingProxyType({})
    counted: Mapping[VcpuKey, Bandwidth] = MappingProxyType({})
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
    varies = ("bank", "counts", "falls", *(("speed",) if speeds_vary else ()))
    limited, varying = {}, []
    for key, entitlement in entitlements.items():
        share = entitlement.share
        if share is not None:
            steady_limit = _steady(entitlement, share, topology)
            entitlement = structs.replace(entitlement, limit=steady_limit)
            if share.follows in varies:
                varying.append(key)
        limited[key] = entitlement
    return Steady(_per_instance(limited) if terms.one_limit else limited, tuple(varying))


def _steady(entitlement: Entitlement, share: Share, topology: Topology) -> Bandwidth | None:
    core_type = None if entitlement.pcpus is None else topology.only_type(entitlement.pcpus)
    cores = share.on(core_type)
    if cores is None:
        return None
    if share.follows == "counts":
        return ips_controller.limit(cores)
    return bandwidth(cores, share.period_us or period_us(min(1.0, cores)))


def carry(before: Limits, limited: Steady, delivered: Mapping[VcpuKey, Delivery]) -> Limits:
    """What limits depend on after one more interval.

    ``delivered``: what the vCPUs whose limits vary have been delivered, as far as that is accounted
    in reference cores.
    """
    if not limited.varying and not before.carried:
        return before
    entitlements = limited.entitlements
    instances = {resource for resource, _ in entitlements}
    # A vCPU that cannot be read in this cycle keeps what it carries.
    unread = [k for k in before.carried if k not in entitlements and k[0] in instances]
    carried = {key: before.carried[key] for key in unread}
    sums = {key: before.delivered[key] for key in unread}
    for key in limited.varying:
        if entitlements[key].governed_by not in ("ips", "excluded"):
            sums[key], last = delivered[key], before.delivered.get(key)
            state = before.carried.get(key) or Carried()
            if last is not None and last != sums[key]:
                state = state.after(sums[key].since(last), entitlements[key])
            carried[key] = state.at(entitlements[key])
    return structs.replace(before, carried=carried, delivered=sums)


def decide(
    limited: Steady,
    carried: Mapping[VcpuKey, Carried],
    counted: Mapping[VcpuKey, Bandwidth],
    now: Allocations,
    context: Context,
) -> Entitlements:
    """The limit of every vCPU until the next cycle; ``now``: what is in force."""
    if not limited.varying:
        return limited.entitlements
    varied = dict(limited.entitlements)
    for key in limited.varying:
        entitlement, allocation = varied[key], now[key]
        if entitlement.governed_by == "ips":
            last = counted.get(key) or allocation.bandwidth
            varied[key] = _counted(entitlement, allocation, last, context.topology)
        elif entitlement.governed_by == "excluded":
            limit = min(allocation.bandwidth, entitlement.limit, key=_cores)
            varied[key] = structs.replace(entitlement, limit=limit)
        else:
            cycle_s, limit = context.terms.cycle_s, allocation.bandwidth
            varied[key] = _following(entitlement, carried[key], limit, cycle_s)
    return _per_instance(varied) if context.terms.one_limit else varied


def _counted(
    entitlement: Entitlement, now: Allocation, last: Bandwidth | None, topology: Topology
) -> Entitlement:
    """The limit that the Ips controller set last, scaled if the vCPU moves to another core type.

    A vCPU without a limit gets its share, which is right for nominal Ips.
    """
    if last is None:
        return entitlement
    current, target = topology.only_type(now.pcpus), entitlement.core_type
    if current is None or target is None or current.name == target:
        return structs.replace(entitlement, limit=last)
    nominal = topology.core_type(target).nominal_ips
    if nominal is None or current.nominal_ips is None:
        return structs.replace(entitlement, limit=last)
    share = min(1.0, last.cores * current.nominal_ips / nominal)
    return structs.replace(entitlement, limit=ips_controller.limit(share))


def _following(
    entitlement: Entitlement, state: Carried, now: Bandwidth | None, cycle_s: float
) -> Entitlement:
    """The limit with which the balance is repaid, or the present one if that is about as good."""
    share, home = entitlement.share, entitlement.home
    refcores = entitlement.booking.refcores
    if share is None or share.cores is None or refcores is None:
        return entitlement
    cores = min(1.0, share.cores)
    at_speed = cores / max(state.kept_ratio, SPEED_LEAST_RATIO)
    if share.follows == "bank":
        repay_s, most = cycle_s, home.max_cores or cores
    else:
        repay_s, most = REPAY_S, min(1.0, EXCESS_RATIO * max(home.cores or 0.0, at_speed))
    limit_cores = at_speed * (1.0 + state.balance_ref_s / (refcores * repay_s))
    limit = bandwidth(
        min(max(limit_cores, LEAST_RATIO * cores), most), share.period_us or period_us(cores)
    )
    if _close(now, limit, HYSTERESIS_RATIO * cores):
        limit = now
    banked_ref_s = max(0.0, state.balance_ref_s) if share.follows == "bank" else 0.0
    reason = entitlement.reason
    if abs(state.kept_ratio - 1.0) >= 0.01:
        reason = f"{reason}, at {state.kept_ratio:.2f} of its speed lately"
    return structs.replace(entitlement, limit=limit, banked_ref_s=banked_ref_s, reason=reason)


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
