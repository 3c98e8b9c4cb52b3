# SPDX-License-Identifier: Apache-2.0
"""What the metrics and the page read of cycles: values of vCPUs, their sums, the last ten minutes.

The keys of values are the values of labels: ``domain``, ``resource``, ``project``, ``vcpu``, then
those of the metric.
"""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from amp_nova.accounting.delivery import CAUSES, KEPT_RATIO, RATIO_BUCKETS
from amp_nova.agent.cycle import Cycle, DomainRecord, VcpuRecord
from amp_nova.agent.publish.host_info import Distribution, HostInfo, slowdown_of, unenforced
from amp_nova.model.observation import DomainReading

Labels = tuple[str, ...]
Values = dict[Labels, float]
SUDDEN = ("throttle", "contention")
"""Causes of a shortfall that come and go: their series start at 0, or a single event would not show
in rates. Other causes last, and some cannot be measured: their series start with the first loss."""
STEP_S = 5.0
SPAN_S = 600.0
"""Of the history: every step, a few floats per instance are added; 400 instances take 1.5 MB."""
FLOATS = 3 + len(CAUSES)
"""Floats per instance and time (``History.rows``)."""


@dataclass(frozen=True, slots=True)
class VcpuTotals:
    """What all vCPUs have counted since the agent started, also those that are gone since.

    ``counts``: by what is counted; ``last``: the last counts of each vCPU that is present.
    """

    counts: Mapping[Labels, float] = field(default_factory=dict)
    last: Mapping[Labels, float] = field(default_factory=dict)

    def plus(self, now: Values, present: Collection[str]) -> "VcpuTotals":
        """With new counts, by instance, vCPU and what is counted; ``present``: all instances.

        A vCPU that cannot be read keeps its last counts, so that they are not added twice.
        """
        counts = dict(self.counts)
        for key, count in now.items():
            more = max(0.0, count - self.last.get(key, 0.0))
            counts[key[2:]] = counts.get(key[2:], 0.0) + more
        kept = {key: count for key, count in self.last.items() if key[0] in present}
        return VcpuTotals(counts, kept | now)

    def of(self, counted: str) -> Values:
        """The counts of one kind, by the values of its own labels."""
        return {key[1:]: count for key, count in self.counts.items() if key[0] == counted}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All instances and vCPUs of a cycle, each with the values of its labels.

    ``admits``: what may be booked on this host, if that is known.
    """

    cycle: Cycle
    instances: tuple[tuple[Labels, DomainRecord], ...]
    vcpus: tuple[tuple[Labels, VcpuRecord], ...]
    admits: HostInfo | None = None
    totals: VcpuTotals = field(default_factory=VcpuTotals)


def snapshot(cycle: Cycle, admits: HostInfo | None, before: VcpuTotals) -> Snapshot:
    """The instances and vCPUs of a cycle; ``before``: the totals of the last snapshot."""
    instances = tuple(
        ((d.domain.name, d.domain.resource, d.domain.project), d) for d in cycle.domains
    )
    vcpus = tuple(((*labels, str(v.reading.index)), v) for labels, d in instances for v in d.vcpus)
    now = dict(_counts(Snapshot(cycle, instances, vcpus)))
    return Snapshot(cycle, instances, vcpus, admits, before.plus(now, cycle.instances.keys()))


def _counts(snap: Snapshot) -> Iterator[tuple[Labels, float]]:
    """Everything that is counted, by instance, vCPU and what is counted."""
    for (_, resource, _, index, cause), short_ref_s in shortfall(snap).items():
        yield (resource, index, "shortfall", cause), short_ref_s
    names = [t.name for t in snap.cycle.topology.core_types]
    for (_, resource, _, index), vcpu in snap.vcpus:
        for name, cpu_s in zip(names, vcpu.account.cpu_s, strict=False):
            yield (resource, index, "cpu", name), cpu_s
        ratios = vcpu.account.ratios
        yield (resource, index, "ratios"), ratios.total
        for bucket, count in enumerate(ratios.counts):
            yield (resource, index, "minutes", str(bucket)), count


def of_each(read: Callable[[VcpuRecord], float | None]) -> Callable[[Snapshot], Values]:
    """An accessor of all vCPUs, from one of a vCPU."""

    def values(snap: Snapshot) -> Values:
        return {labels: n for labels, vcpu in snap.vcpus if (n := read(vcpu)) is not None}

    return values


def by_instance(read: Callable[[Snapshot], Any], snap: Snapshot) -> Values:
    """The sum over the vCPUs of each instance of the ``Values`` that are read.

    While a vCPU cannot be read, the sum is unknown: a counter must not fall.
    """
    unread = {d.domain.resource for d in snap.cycle.observation.domains if d.failure}
    sums = defaultdict[Labels, float](float)
    for labels, number in read(snap).items():
        if labels[1] not in unread:
            sums[*labels[:3], *labels[4:]] += number
    return sums


def measurable(vcpu: VcpuRecord) -> bool:
    """Whether delivery can be compared with the booking, which in Ips needs a counter."""
    booking = vcpu.entitlement.booking
    return booking.refcores is not None or bool(booking.ips and vcpu.reading.counts is not None)


def shortfall(snap: Snapshot) -> Values:
    """Shortfall by cause; one that has taken nothing has no value unless it is ``SUDDEN``."""
    return {
        (*labels, cause): short_ref_s
        for labels, vcpu in snap.vcpus
        if measurable(vcpu)
        for cause, short_ref_s in zip(CAUSES, vcpu.account.shortfall_ref_s, strict=True)
        if short_ref_s or cause in SUDDEN
    }


def cpu_seconds(snap: Snapshot) -> Values:
    """CPU time by core type."""
    names = [t.name for t in snap.cycle.topology.core_types]
    return {
        (*labels, name): cpu_s
        for labels, v in snap.vcpus
        if len(v.account.cpu_s) == len(names)
        for name, cpu_s in zip(names, v.account.cpu_s, strict=True)
    }


def beyond_booking(snap: Snapshot) -> Values:
    """Capacity used beyond bookings, while they are only observed."""
    return {
        labels: vcpu.account.delivery.beyond_ref_s
        for labels, vcpu in snap.vcpus
        if snap.cycle.outcome.observing and vcpu.entitlement.booking.kind != "best_effort"
    }


def would_throttle(snap: Snapshot) -> Values:
    """Time for which vCPUs would be throttled, while bookings are only observed."""
    values: Values = {}
    for labels, vcpu in snap.vcpus if snap.cycle.outcome.observing else ():
        if vcpu.entitlement.share is not None:
            delivery = vcpu.account.delivery
            values[*labels, "least"] = delivery.throttled_least_s
            values[*labels, "most"] = delivery.throttled_most_s
    return values


def undefended_by_cause(snap: Snapshot) -> Mapping[str, float]:
    """vCPUs that enforcement would defend: a cause cost them over 5 % of what they were owed."""
    if not snap.cycle.outcome.observing:
        return {}
    vcpus = Counter(dict.fromkeys(CAUSES[1:], 0))  # the first one is a limit
    for _, vcpu in snap.vcpus:
        account, booked = vcpu.account, vcpu.entitlement.booking
        owed_ref_s = account.ref_s if booked.ips is not None else account.delivery.owed
        for cause, short_ref_s in zip(CAUSES, account.shortfall_ref_s, strict=True):
            vcpus[cause] += cause != "throttle" and short_ref_s > (1.0 - KEPT_RATIO) * owed_ref_s
    return {cause: vcpus[cause] for cause in CAUSES[1:]}


def slowdowns(snap: Snapshot) -> Values:
    """Slowdown of best-effort instances."""
    ratios = ((labels, slowdown_of(d, snap.cycle.topology)) for labels, d in snap.instances)
    return {labels: ratio for labels, ratio in ratios if ratio is not None}


def problems(snap: Snapshot) -> Values:
    """``booking`` if extra specs are invalid, ``host`` if it could not be read completely."""
    invalid = {r for r, instance in snap.cycle.instances.items() if instance.problem}
    reported = [(labels, d.domain.resource in invalid) for labels, d in snap.instances if d.problem]
    return {(*labels, "booking" if wrong else "host"): 1 for labels, wrong in reported}


def _minutes(counts: Sequence[float], ratios: float, *bounds: float) -> Distribution:
    """The histogram of delivered ratios, of which only the buckets up to ``bounds`` are served."""
    below = dict(zip((*RATIO_BUCKETS, math.inf), accumulate(counts), strict=True))
    buckets = [("+Inf" if bound == math.inf else str(bound), below[bound]) for bound in bounds]
    return Distribution(below[math.inf], ratios, tuple(buckets))


def minutes_of_instance(domain: DomainRecord) -> Distribution | None:
    """The histogram of delivered ratios of an instance: one bucket, as "+Inf" is its count."""
    counts = domain.ratios.counts
    return _minutes(counts, domain.ratios.total, KEPT_RATIO) if any(counts) else None


def minutes_of_host(snap: Snapshot) -> Distribution:
    """The histogram of delivered ratios of all vCPUs."""
    counts = snap.totals.of("minutes")
    ordered = [counts.get((str(bucket),), 0.0) for bucket in range(len(RATIO_BUCKETS) + 1)]
    return _minutes(ordered, snap.totals.of("ratios").get((), 0.0), *RATIO_BUCKETS, math.inf)


def delivered_by_kind(snap: Snapshot) -> Mapping[str, float]:
    """Reference cores delivered to ``booked`` and ``best_effort`` vCPUs."""
    refcores = defaultdict[str, float](float)
    for _, vcpu in snap.vcpus:
        if vcpu.account.last.refcores is not None:
            best_effort = vcpu.entitlement.booking.kind == "best_effort"
            refcores["best_effort" if best_effort else "booked"] += vcpu.account.last.refcores
    return refcores


def unenforced_by_reason(snap: Snapshot) -> Mapping[str, float]:
    """vCPUs whose booking is not enforced, by reason; a problem of an instance affects all."""
    reasons = Counter(reason for _, vcpu in snap.vcpus for reason in unenforced(vcpu))
    vcpus = {labels: domain.domain.plugged for labels, domain in snap.instances}
    for *labels, reason in problems(snap):
        reasons[reason] += vcpus[*labels]
    return reasons


@dataclass(frozen=True, slots=True)
class History:
    """The last ten minutes of all instances, at the times ``times_s``, the oldest first.

    ``values``: the rows of each instance. One that arrived later has fewer rows than there are
    times. ``short_ref_s``: the accumulated shortfall of each instance at the last time, by cause.
    """

    times_s: tuple[float, ...] = ()
    values: Mapping[str, "array[float]"] = field(default_factory=dict)
    short_ref_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def rows(self, resource: str) -> list[Sequence[float]]:
        """One row per time: what an instance books (0 for best effort) and gets (NaN if that is not
        measured) in reference cores; the seconds since the time before; and by cause the mean
        shortfall in reference cores during these seconds."""
        values = self.values.get(resource, array("f"))
        return [values[at : at + FLOATS] for at in range(0, len(values), FLOATS)]


def advance(before: History, cycle: Cycle, now_s: float) -> History:
    """The history with a cycle added; ``now_s`` is in seconds since the epoch."""
    if before.times_s and before.times_s[-1] > now_s:
        before = History()  # the clock was set back: old times would be in the future
    span_s = now_s - before.times_s[-1] if before.times_s else 0.0
    if before.times_s and span_s < STEP_S * 0.999:
        return before
    recent = [t for t in before.times_s if t >= now_s - SPAN_S - STEP_S]
    times_s = (*recent, now_s)
    values, totals = {}, {}
    for domain in cycle.observation.domains:
        resource = domain.domain.resource
        booked, delivered, total = in_refcores(cycle, domain)
        last_total = before.short_ref_s.get(resource, total)
        short = (max(0.0, a - b) / (span_s or 1.0) for a, b in zip(total, last_total, strict=True))
        row = array("f", (booked, delivered, span_s, *short))
        values[resource] = (before.values.get(resource, array("f")) + row)[-len(times_s) * FLOATS :]
        totals[resource] = total
    return History(times_s, values, totals)


def in_refcores(cycle: Cycle, domain: DomainReading) -> tuple[float, float, tuple[float, ...]]:
    """What an instance books and gets now, and its accumulated shortfall by cause.

    A booking in Ips, and what is delivered of it, count as the reference cores that it is worth.
    """
    booked = delivered = 0.0
    short = (0.0,) * len(CAUSES)
    for vcpu in domain.vcpus:
        key = (domain.domain.resource, vcpu.index)
        entitlement, account = cycle.entitlements[key], cycle.accounts.of(key)
        home, last = entitlement.home, account.last
        worth, refcores = entitlement.booking.refcores or 0.0, last.refcores
        if entitlement.booking.ips and home.cores is not None and home.core_type is not None:
            worth = home.cores * (cycle.topology.core_type(home.core_type).coefficient or 0.0)
            refcores = None if last.ips is None else worth * last.ips / entitlement.booking.ips
        booked += worth
        delivered += math.nan if refcores is None else refcores
        short = tuple(a + b for a, b in zip(short, account.shortfall_ref_s, strict=True))
    return booked, delivered, short
