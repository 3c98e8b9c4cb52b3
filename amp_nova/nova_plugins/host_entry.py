# SPDX-License-Identifier: Apache-2.0
"""One host in a scheduler process: what is known of it, and whether a request fits it."""

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from amp_nova.exceptions import ReportInvalid
from amp_nova.scheduling import host_fit, placement_score
from amp_nova.scheduling.demands import request_of
from amp_nova.scheduling.host_fit import HostCapacity, HostFit, quick_fit, repacked_fit
from amp_nova.scheduling.pending import PendingByUuid
from amp_nova.scheduling.placement_score import BestEffortDemand
from amp_nova.scheduling.sensitivity import Profile
from amp_nova.wire.host_report import HostReport, ReportedInstance

T = TypeVar("T")
EXAMINING_S, REPACKING_S, TURNING_S = 0.06, 0.03, 0.02
"""CPU time in which a request examines hosts whose state is new to it, and the part of it in which
it packs hosts anew whose free capacity is fragmented, up to 20 ms each. Others pass without, and
are examined when Nova turns to them, for ``TURNING_S`` more. Results are cached until a host
changes."""
RESULTS_MAX = 512
"""How many results of a host are kept when it reports the same again: two for each request."""


@dataclass(eq=False)
class Entry:
    """One host: its last report, pending instances, and cached results that follow from both.

    ``sensitivities``: what its measurements say of each flavor and image. ``results``: fits and
    weights; a change of the host's state makes a new entry, so cached results never outlive it.
    """

    report: HostReport
    received_s: float
    pending: PendingByUuid = field(default_factory=dict)
    sensitivities: Mapping[Profile, float] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)

    def usable(self, oldest_s: float) -> bool:
        """Whether the agent is healthy and its report was not received before ``oldest_s``."""
        return self.received_s >= oldest_s and self.report.healthy

    @functools.cached_property
    def capacity(self) -> HostCapacity:
        """The capacity of the host, beside all that is pending."""
        return self.capacity_beside(self.pending)

    def capacity_beside(self, pending: PendingByUuid, without: str | None = None) -> HostCapacity:
        """The capacity beside these, including what one instance already has on this host."""
        sizes = {resource: each.sizes for resource, each in pending.items()}
        return host_fit.capacity_of(self.report, without, sizes)

    @functools.cached_property
    def best_effort(self) -> BestEffortDemand:
        """The best-effort demand of the host."""
        free = {f.core_type.name: f.free_cores for f in self.capacity.free}
        return placement_score.best_effort_demand(self.report, free)

    def counts(self, resource: str) -> bool:
        """Whether an instance is on this host or pending."""
        return resource in self.report.by_uuid or resource in self.pending

    def has_booking(self, resource: str, request: ReportedInstance) -> bool:
        """Whether an instance has just this booking here, reported or pending."""
        there, pending = self.report.by_uuid.get(resource), self.pending.get(resource)
        sizes = pending.sizes if pending is not None else ()
        return request in sizes or (there is not None and request_of(there) == request)

    def check(self) -> None:
        """Compute what requests need; ``ReportInvalid`` if that fails or is no number.

        One host's report must not fail the requests of a whole cloud, whatever it contains and
        whatever our own arithmetic makes of it. What is computed here is cached, so no request
        waits for it.
        """
        try:
            if not math.isfinite(self.best_effort.throughput):
                raise ValueError(f"its throughput is {self.best_effort.throughput}")
        except Exception as exc:
            reason = f"{self.report.origin.node} cannot be scored: {exc!r:.200}"
            raise ReportInvalid("unusable", reason) from exc


class Query:
    """One instance's request, tried on many hosts in a limited time."""

    def __init__(self, resource: str, request: ReportedInstance) -> None:
        self.resource = resource
        self.request = request
        self._key = repr(request)
        self._used_s = [0.0]
        self._more_s = 0.0

    def turned(self, pin: Callable[[], ReportedInstance | None] | None = None) -> "Query | None":
        """The same when Nova turns to a host, with the pCPUs to which it would ``pin`` it there.

        ``None`` if it cannot pin it, or if time is up.
        """
        request = self.request if pin is None else self._in_time(EXAMINING_S + TURNING_S, pin)
        if request is None:
            return None
        query = Query(self.resource, request)
        query._used_s, query._more_s = self._used_s, TURNING_S
        return query

    def _in_time(self, most_s: float, examine: Callable[[], T]) -> T | None:
        """What this returns, unless more time than this was used before."""
        if self._used_s[0] >= most_s + self._more_s:
            return None
        began_s = time.thread_time()
        result = examine()
        self._used_s[0] += time.thread_time() - began_s
        return result

    def fit(self, entry: Entry) -> HostFit | None:
        """Whether it fits a host beside all that is pending there; ``None`` if time is up."""
        request = self.request
        if entry.counts(self.resource):
            return host_fit.fit(entry.capacity_beside(entry.pending, self.resource), request)
        fit: HostFit | None = entry.results.get(self._key)
        if fit is None:
            fit = self._in_time(EXAMINING_S, lambda: quick_fit(entry.capacity, request))
            fit = fit or self._in_time(REPACKING_S, lambda: repacked_fit(entry.capacity, request))
            if fit is not None:
                entry.results[self._key] = fit
        return fit

    def may_fit(self, entry: Entry) -> bool:
        """Whether it fits if others give up what they claim, and what is gone has left for good."""
        chosen = {r: p for r, p in entry.pending.items() if p.chosen}
        if len(chosen) == len(entry.pending) or entry.counts(self.resource):
            return False
        return host_fit.fit(entry.capacity_beside(chosen), self.request).refused is None
