"""What one scheduler process knows about hosts: their last reports, and its own decisions since.

One instance per process, shared by the filter and the weighers. A separate thread receives reports
(``report_server``); readers use the latest ones and never wait.
"""

import math
import statistics
import threading
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from oslo_config import cfg

from amp_nova.exceptions import ReportInvalid
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.nova_plugins import report_order
from amp_nova.nova_plugins.refusals import Refusals
from amp_nova.nova_plugins.report_order import Order
from amp_nova.scheduling import host_fit, placement_score
from amp_nova.scheduling.best_effort import BestEffortDemand
from amp_nova.scheduling.demands import Request
from amp_nova.scheduling.host_fit import Headroom
from amp_nova.scheduling.placement_score import NewInstance
from amp_nova.scheduling.sensitivity import SENSITIVITY_MAX, Profile, profiles
from amp_nova.wire.encoding import decode
from amp_nova.wire.host_report import VCPUS_MAX, HostReport, ReportedInstance

T = TypeVar("T")
FORGET_AFTER = 20
"""A host that is silent for this many times ``stale_after_s`` is forgotten."""
REQUESTS_MAX = 1 << 16
"""At most this many instances have their host remembered until its agent reports them."""
RESULTS_MAX = 512
"""At most this many results are cached for each state of a host: two for each request."""
TYPICAL = (
    NewInstance(1, sensitivity=0.0),
    NewInstance(1, sensitivity=SENSITIVITY_MAX),
    NewInstance(0, (1.0,)),
)
"""A best-effort instance that gains nothing from fast cores, one that gains most, and a booking."""
TENTATIVE_S = 10.0
"""How long capacity is reserved for a claim in progress."""


def _never() -> bool:
    return False


def _any_host(_node: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Pending:
    """An instance that counts on a host although the agent's last report does not show it.

    Either it was sent there a moment ago, or it is ``away``: the agent reported it before, and it
    may be stopped, or the host may be restarting. An instance that is away keeps its capacity until
    Nova no longer has it there.
    """

    request: Request
    until_s: float
    dropped: Callable[[], bool] = _never
    """Whether Nova has dropped the decision: a multi-create places all instances or none."""
    tentative: bool = False
    """Whether its claim is still in progress."""
    away: bool = False

    def over(self, now_s: float) -> bool:
        """Whether it no longer counts."""
        return self.until_s <= now_s or self.dropped()


@dataclass(eq=False)
class Entry:
    """One host: its last report, pending instances, and cached results that follow from both.

    ``sensitivities``: what the host's measurements say of each flavor and image.
    ``results`` caches fits and weights by ``cache_key``; they share it, because filling a second
    dictionary on every host would take longer. A change of the host's state makes a new entry, so
    cached results never outlive it.
    """

    report: HostReport
    received_s: float
    order: Order
    pending: Mapping[str, Pending] = field(default_factory=dict)
    sensitivities: Mapping[Profile, float] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)

    def usable(self, oldest_s: float) -> bool:
        """Whether the agent is healthy and its report was not received before ``oldest_s``."""
        return self.received_s >= oldest_s and self.report.healthy

    @cached_property
    def away(self) -> frozenset[str]:
        """Instances that the agent no longer reports and whose capacity is kept."""
        return frozenset(r for r, p in self.pending.items() if p.away)

    @cached_property
    def requests(self) -> dict[str, Request]:
        """The requests of pending instances."""
        return {resource: pending.request for resource, pending in self.pending.items()}

    @cached_property
    def headroom(self) -> Headroom:
        """The headroom of the host."""
        return host_fit.headroom_of(self.report, pending=self.requests)

    @cached_property
    def best_effort(self) -> BestEffortDemand:
        """The best-effort demand of the host."""
        free = {f.core_type.name: f.free_cores for f in self.headroom.free}
        return placement_score.best_effort_demand(self.report, free)

    def holds(self, resource: str) -> bool:
        """Whether an instance is on this host or pending."""
        return resource in self.report.by_uuid or resource in self.pending

    def check(self) -> None:
        """Fit and score typical instances; ``ReportInvalid`` if that fails or a score is no number.

        One host's report must not fail the requests of a whole cloud, whatever it contains and
        whatever our own arithmetic makes of it. What is computed here is cached, so no request
        waits for it.
        """
        try:
            every_type = tuple(t.name for t in self.report.topology.core_types)
            for new in TYPICAL:
                scores = placement_score.gain_and_speed(self.best_effort, new, every_type)
                if not all(map(math.isfinite, scores)):
                    raise ValueError(f"an instance's score is {scores}")
        except Exception as exc:
            reason = f"{self.report.origin.node} cannot be scored: {exc!r:.200}"
            raise ReportInvalid("unusable", reason) from exc

    def headroom_for(self, resource: str) -> Headroom:
        """The headroom for one instance, including what the instance already has on this host."""
        if self.holds(resource):
            return host_fit.headroom_of(self.report, resource, self.requests)
        return self.headroom


def remember(results: dict[str, Any], key: str, result: T) -> T:
    """Cache a result, after forgetting all others if there are too many."""
    if len(results) >= RESULTS_MAX:
        results.clear()
    results[key] = result
    return result


def cache_key(*values: object) -> str:
    """A key for ``Entry.results``: unlike a tuple, a string hashes only once."""
    return repr(values)


def reported_request(instance: ReportedInstance) -> Request:
    """The request that a reported instance was placed with."""
    return Request(
        tuple(
            VcpuBooking(v.index, "pref_core", refcores=v.refcores)
            if v.ips is None
            else VcpuBooking(v.index, "ips", ips=v.ips)
            for v in instance.vcpus
            if v.booked
        ),
        instance.core_type,
    )


class HostStates:
    """Entries by node; thread-safe. Readers take no lock."""

    def __init__(
        self,
        options: cfg.ConfigOpts,
        clock: Callable[[], float] = time.monotonic,
        known: Callable[[str], bool] = _any_host,
    ) -> None:
        """``known`` returns whether Nova has a host."""
        self._options = options
        self._clock = clock
        self._known = known
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._sent: dict[str, str] = {}
        """The node that each pending instance was sent to."""
        self._pruned_s = clock()
        self.rejected = Refusals(clock)

    def entry(self, node: str) -> Entry | None:
        """What is known about a host, however old; ``None`` if it never reported."""
        entry = self._entries.get(node)
        if entry is not None and entry.pending:
            now_s = self._clock()
            if any(p.over(now_s) for p in entry.pending.values()):
                return self._keep_pending(node, lambda _, pending: not pending.over(now_s))
        return entry

    def oldest_s(self) -> float:
        """The time of receipt, on the monotonic clock, before which a report is stale."""
        return float(self._clock() - self._options.amp_scheduler.stale_after_s)

    def sensitivity(self, profile: Profile) -> float | None:
        """The sensitivity of a flavor and image; ``None`` if no host has measured it.

        The median over hosts, in which each counts once: one host moves it at most as far as to
        what the next host says.
        """
        entries = list(self._entries.values())  # the other thread may add one
        found = [s for e in entries if (s := e.sensitivities.get(profile)) is not None]
        return statistics.median(found) if found else None

    def accept(self, text: object) -> bool:
        """Accept a report unless it is invalid or older than the last; returns whether it was."""
        node = ""
        try:
            report = decode(text)
            node = report.origin.node
            if not self._known(node):
                raise ReportInvalid("unknown_host", f"Nova has no host {node}")
            with self._lock:
                self._accept(report)
        except ReportInvalid as exc:
            self.rejected.add(node, exc.kind, exc)
            return False
        return True

    def _accept(self, report: HostReport) -> None:
        now_s, node = self._clock(), report.origin.node
        previous = self._entries.get(node)
        oldest_s = self._options.amp_scheduler.stale_after_s
        before = None if previous is None else previous.order
        order = report_order.advance(before, report.origin, now_s, oldest_s)
        pending: Mapping[str, Pending] = {}
        if previous is not None:
            pending = {
                resource: each
                for resource, each in {**_away(previous.report, report), **previous.pending}.items()
                if not each.over(now_s) and not _shows(report, resource, each)
            }
            pending = _bounded(pending, report)
        if (
            previous is not None
            and pending == previous.pending
            and report.same_state(previous.report)
        ):
            previous.report = replace(previous.report, origin=report.origin)
            previous.received_s, previous.order = now_s, order
            return
        entry = Entry(report, now_s, order, pending, profiles(report))
        entry.check()
        self._entries[node] = entry
        self._prune(now_s)

    def decided(
        self, node: str, resource: str, request: Request, dropped: Callable[[], bool] = _never
    ) -> None:
        """Count an instance on the host that Nova chose, until its agent reports it."""
        with self._lock:
            self._release(resource)
            until_s = self._clock() + self._options.amp_scheduler.pending_s
            self._send(node, resource, Pending(request, until_s, dropped))

    def reserve(self, node: str, resource: str, request: Request) -> bool:
        """Reserve capacity for a claim if it is still free.

        Other requests may have been decided since the filter ran. An instance for which a host was
        chosen already keeps it and reserves nothing on a second one.
        """
        with self._lock:
            chosen = self._entries.get(self._sent.get(resource, ""))
            had = None if chosen is None else chosen.pending.get(resource)
            if had is not None and not had.tentative and not had.over(self._clock()):
                return True
            self._release(resource)
            entry = self._entries.get(node)
            if entry is None:
                return True
            if host_fit.fit(entry.headroom_for(resource), request).refused is not None:
                return False
            until_s = self._clock() + TENTATIVE_S
            self._send(node, resource, Pending(request, until_s, tentative=True))
            return True

    def release_away(self, node: str, there: Container[str]) -> Entry | None:
        """Free the capacity of instances that are away and that Nova no longer has ``there``."""
        return self._keep_pending(node, lambda r, pending: not pending.away or r in there)

    def _send(self, node: str, resource: str, pending: Pending) -> None:
        if (entry := self._entries.get(node)) is not None:
            self._replace_pending(node, {**entry.pending, resource: pending})
            self._sent[resource] = node
            if len(self._sent) > REQUESTS_MAX:
                self._release(next(iter(self._sent)))

    def _release(self, resource: str) -> None:
        node = self._sent.pop(resource, "")
        if (entry := self._entries.get(node)) is not None and resource in entry.pending:
            self._replace_pending(node, {r: p for r, p in entry.pending.items() if r != resource})

    def _keep_pending(self, node: str, keep: Callable[[str, Pending], bool]) -> Entry | None:
        with self._lock:
            if (entry := self._entries.get(node)) is None:
                return None  # forgotten in the meantime
            kept = {r: p for r, p in entry.pending.items() if keep(r, p)}
            return entry if len(kept) == len(entry.pending) else self._replace_pending(node, kept)

    def _replace_pending(self, node: str, pending: Mapping[str, Pending]) -> Entry:
        entry = self._entries[node]
        entry = Entry(entry.report, entry.received_s, entry.order, pending, entry.sensitivities)
        self._entries[node] = entry
        return entry

    def _prune(self, now_s: float) -> None:
        """Forget hosts that stopped reporting, and the hosts of instances no longer pending."""
        stale_s = self._options.amp_scheduler.stale_after_s
        if now_s - self._pruned_s < stale_s:
            return
        self._pruned_s = now_s
        oldest_s = now_s - FORGET_AFTER * stale_s
        self._entries = {n: e for n, e in self._entries.items() if e.received_s >= oldest_s}
        pending = {r for e in self._entries.values() for r in e.pending}
        self._sent = {r: n for r, n in self._sent.items() if r in pending}


def _shows(report: HostReport, resource: str, pending: Pending) -> bool:
    """Whether a report shows a pending instance with the booking it was sent with."""
    instance = report.by_uuid.get(resource)
    return instance is not None and (pending.away or reported_request(instance) == pending.request)


def _bounded(pending: Mapping[str, Pending], report: HostReport) -> Mapping[str, Pending]:
    """Drop the oldest instances that are away if the host cannot have them besides the reported.

    The newest come first.
    """
    left = VCPUS_MAX - sum(len(i.vcpus) for i in report.instances)
    kept = {}
    for resource, each in pending.items():
        left -= len(each.request.vcpus) if each.away else 0
        if left >= 0 or not each.away:
            kept[resource] = each
    return kept


def _away(before: HostReport, after: HostReport) -> dict[str, Pending]:
    """Booked instances that the agent reported before and does not report any more."""
    return {
        i.resource: Pending(reported_request(i), math.inf, away=True)
        for i in before.instances
        if i.resource not in after.by_uuid and i.booked
    }
