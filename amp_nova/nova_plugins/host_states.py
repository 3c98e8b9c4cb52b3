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
from amp_nova.nova_plugins.metrics import Refusals
from amp_nova.scheduling import host_fit, pending, placement_score, report_order
from amp_nova.scheduling.host_fit import Headroom
from amp_nova.scheduling.pending import NovaInstances, Pending, PendingByUuid, Reserved
from amp_nova.scheduling.placement_score import BestEffortDemand, NewInstance
from amp_nova.scheduling.report_order import Order
from amp_nova.scheduling.sensitivity import SENSITIVITY_MAX, Profile, profiles
from amp_nova.wire.encoding import decode
from amp_nova.wire.host_report import HostReport, ReportedInstance

T = TypeVar("T")
FORGET_AFTER = 20
"""A host that is silent for this many times ``stale_after_s`` is forgotten."""
REQUESTS_MAX = 1 << 16
"""At most this many instances have their hosts remembered until the agents report them."""
RESULTS_MAX = 512
"""At most this many results are cached for each state of a host: two for each request."""
TYPICAL = (
    NewInstance(1, sensitivity=0.0),
    NewInstance(1, sensitivity=SENSITIVITY_MAX),
    NewInstance(0, (1.0,)),
)
"""A best-effort instance that gains nothing from fast cores, one that gains most, and a booking."""


def _any_host(_node: str) -> bool:
    return True


@dataclass(eq=False)
class Entry:
    """One host: its last report, pending instances, and cached results that follow from both.

    ``sensitivities``: what the host's measurements say of each flavor and image.
    ``results`` caches fits and weights by ``cache_key``; they share it, because filling a second
    dictionary on every host would take longer. A change of the host's state makes a new entry, so
    cached results never outlive it.
    """

    report: HostReport
    order: Order
    pending: PendingByUuid = field(default_factory=dict)
    sensitivities: Mapping[Profile, float] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)

    def usable(self, oldest_s: float) -> bool:
        """Whether the agent is healthy and its report was not received before ``oldest_s``."""
        return self.order.received_s >= oldest_s and self.report.healthy

    @cached_property
    def left(self) -> frozenset[str]:
        """Instances that the agent no longer reports and whose capacity is kept."""
        return frozenset(
            r for r, p in self.pending.items() if p.kind == "left" and r not in self.report.by_uuid
        )

    @cached_property
    def requests(self) -> dict[str, ReportedInstance]:
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

    def counts(self, resource: str) -> bool:
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
                scores = placement_score.score(self.best_effort, new, every_type)
                if not all(map(math.isfinite, scores)):
                    raise ValueError(f"an instance's score is {scores}")
        except Exception as exc:
            reason = f"{self.report.origin.node} cannot be scored: {exc!r:.200}"
            raise ReportInvalid("unusable", reason) from exc

    def headroom_for(self, resource: str) -> Headroom:
        """The headroom for one instance, including what the instance already has on this host."""
        if self.counts(resource):
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
        self._sent: dict[str, frozenset[str]] = {}
        """The nodes on which each instance that was decided about is pending."""
        self._pruned_s = clock()
        self.accepted = 0
        self.rejected = Refusals(clock)

    def entry(self, node: str) -> Entry | None:
        """The entry of a host, however old its report; ``None`` if it never reported."""
        return self._entries.get(node)

    def oldest_s(self) -> float:
        """The time of receipt, on the monotonic clock, before which a report is stale."""
        return float(self._clock() - self._options.amp_scheduler.stale_after_s)

    def hosts(self) -> dict[str, int]:
        """How many hosts have a report that is usable, too old, or of an unhealthy agent."""
        oldest_s, entries = self.oldest_s(), list(self._entries.values())
        stale = sum(e.order.received_s < oldest_s for e in entries)
        usable = sum(e.usable(oldest_s) for e in entries)
        return {"usable": usable, "stale": stale, "unhealthy": len(entries) - usable - stale}

    def sensitivity(self, profile: Profile) -> float | None:
        """The sensitivity of a flavor and image; ``None`` if no host has measured it.

        The median over hosts, in which each counts once: one host moves it at most as far as to
        what the next host says.
        """
        entries = list(self._entries.values())  # the other thread may add one
        measured = [s for e in entries if (s := e.sensitivities.get(profile)) is not None]
        return statistics.median(measured) if measured else None

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
                self.accepted += 1
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
        kept: PendingByUuid = {}
        if previous is not None:
            kept = pending.after_report(previous.report, report, previous.pending, now_s)
        if previous is not None and kept == previous.pending and report.same_state(previous.report):
            previous.report = replace(previous.report, origin=report.origin)
            previous.order = order
            return
        entry = Entry(report, order, kept, profiles(report))
        entry.check()
        self._entries[node] = entry
        self._prune(now_s)

    def decided(self, node: str, resource: str, each: Pending) -> None:
        """Count an instance on a host, in addition to all others if it is an alternate."""
        with self._lock:
            self._decide(node, resource, each)

    def reserve(self, node: str, resource: str, request: ReportedInstance, kind: Reserved) -> bool:
        """Reserve capacity if it is still free; a claim releases what the last one reserved.

        Other requests may have been decided since the filter ran.
        """
        with self._lock:
            if kind == "tentative":
                self._release(resource)
            if node in self._entries and not self._fits(node, resource, request):
                return False
            each = Pending(request, self._clock(), kind, ordered=kind != "tentative")
            self._decide(node, resource, each)
            return True

    def chosen(self, resource: str) -> bool:
        """Whether Nova chose a host for this instance: then it tries others as alternates only."""
        return any(
            each.kind == "chosen"
            for node in self._sent.get(resource, ())
            if (entry := self._entries.get(node)) is not None
            and (each := entry.pending.get(resource)) is not None
        )

    def ordered(self, node: str, resource: str) -> bool:
        """Keep a reservation that the bus has delivered if it fits beside all delivered earlier.

        This worker's tentative ones still on their way do not count: they were made beside this.
        """
        with self._lock:
            entry = self._entries.get(node)
            if entry is None or (each := entry.pending.get(resource)) is None:
                return True
            before = {r: p.request for r, p in entry.pending.items() if p.ordered}
            headroom = host_fit.headroom_of(entry.report, resource, before)
            if host_fit.fit(headroom, each.request).refused is not None:
                self._release(resource, node)
                return False
            self._replace(node, {**entry.pending, resource: replace(each, ordered=True)})
            return True

    def release(self, resource: str, node: str = "") -> None:
        """An instance is no longer pending on this host, or on any."""
        with self._lock:
            self._release(resource, node)

    def release_left(self, node: str, there: Container[str]) -> Entry | None:
        """Free the capacity of instances that left the reports and are not ``there`` for Nova."""
        with self._lock:
            if (entry := self._entries.get(node)) is None:
                return None  # forgotten in the meantime
            sent = entry.pending.items()
            return self._replace(node, {r: p for r, p in sent if p.kind != "left" or r in there})

    def waiting(self) -> frozenset[str]:
        """All instances that are pending anywhere."""
        return frozenset(r for entry in list(self._entries.values()) for r in entry.pending)

    def follow(self, instances: NovaInstances, began_s: float) -> None:
        """Take what Nova's database has, read since ``began_s`` on the monotonic clock."""
        there = {nova.node for nova in instances.values() if nova is not None}
        with self._lock:
            for node, entry in self._entries.items():
                if not entry.pending and node not in there:
                    continue
                kept = pending.after_nova(node, entry.report, entry.pending, instances, began_s)
                if kept != entry.pending:
                    self._replace(node, kept)

    def _fits(self, node: str, resource: str, request: ReportedInstance) -> bool:
        headroom = self._entries[node].headroom_for(resource)
        return host_fit.fit(headroom, request).refused is None

    def _decide(self, node: str, resource: str, each: Pending) -> None:
        if each.kind != "alternate":
            self._release(resource)
        if (entry := self._entries.get(node)) is not None:
            self._replace(node, {**entry.pending, resource: each})
            self._sent[resource] = self._sent.get(resource, frozenset()) | {node}
            if len(self._sent) > REQUESTS_MAX:
                self._release(next(iter(self._sent)))

    def _release(self, resource: str, only: str = "") -> None:
        nodes = self._sent.pop(resource, frozenset())
        if only and nodes - {only}:
            self._sent[resource] = nodes - {only}
        for node in nodes & {only} if only else nodes:
            if (entry := self._entries.get(node)) is not None and resource in entry.pending:
                self._replace(node, {r: p for r, p in entry.pending.items() if r != resource})

    def _replace(self, node: str, kept: PendingByUuid) -> Entry:
        entry = self._entries[node]
        entry = Entry(entry.report, entry.order, kept, entry.sensitivities)
        self._entries[node] = entry
        return entry

    def _prune(self, now_s: float) -> None:
        """Forget hosts that stopped reporting, and the hosts of instances no longer pending."""
        stale_s = self._options.amp_scheduler.stale_after_s
        if now_s - self._pruned_s < stale_s:
            return
        self._pruned_s = now_s
        oldest_s = now_s - FORGET_AFTER * stale_s
        self._entries = {n: e for n, e in self._entries.items() if e.order.received_s >= oldest_s}
        kept = {r for e in self._entries.values() for r in e.pending}
        self._sent = {r: nodes for r, nodes in self._sent.items() if r in kept}
