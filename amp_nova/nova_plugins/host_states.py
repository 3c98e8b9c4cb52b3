# SPDX-License-Identifier: Apache-2.0
"""What one scheduler process knows about hosts: their last reports, and what workers decided since.

One instance per process, shared by the filter and the weighers. A separate thread receives reports
(``report_server``); readers use the latest ones and never wait.
"""

import logging
import math
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from oslo_config import cfg

from amp_nova.exceptions import ReportInvalid
from amp_nova.nova_plugins.host_entry import RESULTS_MAX, Entry, Query
from amp_nova.scheduling import host_fit
from amp_nova.scheduling.demands import request_of
from amp_nova.scheduling.host_fit import HostFit
from amp_nova.scheduling.pending import (
    NovaInstance,
    NovaInstances,
    Pending,
    PendingByUuid,
    after_nova,
    after_report,
)
from amp_nova.scheduling.sensitivity import Profile, profiles
from amp_nova.wire.encoding import decode
from amp_nova.wire.host_report import HostReport

LOG = logging.getLogger(__name__)
FORGET_AFTER = 20
"""A host that is silent for this many times ``stale_after_s`` is forgotten, unless the last report
counts however old it is."""
CONTENDED = HostFit(refused="its capacity may become free in a moment")
"""When other requests' claims fail, or Nova says that an instance that is gone has left."""
LOG_EVERY_S = 60.0
"""Refused reports of one kind are logged at most once in this time, whoever sends them."""


class HostStates:
    """Entries by node; thread-safe. Readers take no lock."""

    def __init__(
        self,
        options: cfg.ConfigOpts,
        clock: Callable[[], float] = time.monotonic,
        known: Callable[[str], bool] = lambda _node: True,
    ) -> None:
        """``known`` returns whether Nova has a host."""
        self._options = options
        self._clock = clock
        self._known = known
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._pending: dict[str, PendingByUuid] = {}
        """What is pending on each host, also on those that have not reported."""
        self._cells: frozenset[str] = frozenset()
        """The cells that have said what arrives on their hosts."""
        self._logged_s: dict[str, float] = {}
        self.reports: Counter[str] = Counter(accepted=0)
        """How many were accepted, or refused by kind: old, unknown_host, version, malformed,
        oversized, unusable."""

    def entry(self, node: str) -> Entry | None:
        """The entry of a host, however old its report; ``None`` if it never reported."""
        return self._entries.get(node)

    def oldest_s(self) -> float:
        """The time of receipt, on the monotonic clock, before which a report is stale."""
        return float(self._clock() - self._options.amp_scheduler.stale_after_s)

    def hosts(self) -> dict[str, int]:
        """How many hosts have a report that is usable, too old, or of an unhealthy agent."""
        oldest_s, entries = self.oldest_s(), list(self._entries.values())
        stale = sum(e.received_s < oldest_s for e in entries)
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
        try:
            report = decode(text)
            if not self._known(node := report.origin.node):
                raise ReportInvalid("unknown_host", f"Nova has no host {node}")
            with self._lock:
                self._accept(report)
        except ReportInvalid as exc:
            self.reports[exc.kind] += 1
            now_s = self._clock()
            if now_s - self._logged_s.get(exc.kind, -math.inf) >= LOG_EVERY_S:
                self._logged_s[exc.kind] = now_s
                LOG.warning("%s; %d of this kind so far", exc, self.reports[exc.kind])
            return False
        self.reports["accepted"] += 1
        return True

    def _accept(self, report: HostReport) -> None:
        now_s, origin = self._clock(), report.origin
        previous = self._entries.get(origin.node)
        kept = self._pending.get(origin.node, {})
        if previous is not None:
            last = previous.report.origin
            # Unless the last one is stale: nobody who sends reports in the name of a host locks its
            # agent out for longer.
            if (
                origin.boot_id == last.boot_id
                and origin.sequence <= last.sequence
                and previous.received_s >= self.oldest_s()
            ):
                raise ReportInvalid("old", f"a newer one of {origin.node} was received before")
            kept = after_report(previous.report, report, kept)
            if kept == previous.pending and report.same_state(previous.report):
                previous.report = replace(previous.report, origin=origin)
                previous.received_s = now_s
                if len(previous.results) > RESULTS_MAX:
                    previous.results.clear()
                return
        entry = Entry(report, now_s, kept, profiles(report))
        entry.check()
        self._entries[origin.node], self._pending[origin.node] = entry, kept
        options = self._options.amp_scheduler
        if options.stale_report != "last":
            oldest_s = now_s - FORGET_AFTER * options.stale_after_s
            for node in [n for n, e in self._entries.items() if e.received_s < oldest_s]:
                del self._entries[node]

    def decided(self, node: str, resource: str, each: Pending) -> None:
        """Count an instance on a host; ignored if Nova has no such host."""
        if node not in self._entries and not self._known(node):
            return
        with self._lock:
            entry = self._entries.get(node)
            if entry is not None and (there := entry.report.by_uuid.get(resource)) is not None:
                # A resize on this host, which may be reverted.
                each = replace(each, sizes=(*each.sizes, request_of(there)))
            self._replace(node, {**self._pending.get(node, {}), resource: each})

    def reserve(self, node: str, query: Query) -> HostFit:
        """Reserve capacity if it still fits; ``CONTENDED`` if what holds it may end in a moment.

        Other requests may have been decided since the filter ran.
        """
        with self._lock:
            if (entry := self._entries.get(node)) is None:
                return HostFit()
            if (fit := query.fit(entry)) is None:
                return HostFit(refused="there was no time to examine it")
            if fit.refused is None:
                each = Pending((query.request,), self._clock(), chosen=False)
                self.decided(node, query.resource, each)
            elif query.may_fit(entry):
                return CONTENDED
            return fit

    def ordered(self, node: str, resource: str) -> bool:
        """Keep a reservation that the bus has delivered if it fits beside all delivered earlier.

        Those also count that came later and have the lesser UUID, or are chosen: their own worker
        may have received them before this one.
        """
        with self._lock:
            entry = self._entries.get(node)
            if entry is None or (each := entry.pending.get(resource)) is None:
                return True
            before = {
                r: p
                for r, p in entry.pending.items()
                if p.chosen or p.since_s <= each.since_s or r < resource
            }
            capacity = entry.capacity_beside(before, resource)
            if any(host_fit.fit(capacity, size).refused is not None for size in each.sizes):
                self.release(node, resource)
                return False
            return True

    def release(self, node: str, resource: str) -> None:
        """An instance is no longer pending on a host."""
        with self._lock:
            pending = self._pending.get(node, {})
            if resource in pending:
                self._replace(node, {r: p for r, p in pending.items() if r != resource})

    def pending(self) -> frozenset[str]:
        """All instances that are pending anywhere."""
        with self._lock:
            return frozenset(chain.from_iterable(self._pending.values()))

    def knows(self, host: Any) -> bool:
        """Whether a host of Nova's has reported, and its cell said what arrives on it."""
        return host.nodename in self._entries and host.cell_uuid in self._cells

    def follow(self, instances: NovaInstances, began_s: float, cells: Iterable[str] = ()) -> None:
        """Take what Nova has, read since ``began_s``; of these ``cells`` also all that arrives."""
        there: dict[str, dict[str, NovaInstance | None]] = {}
        for resource, nova in instances.items():
            for node in nova.needs if nova is not None else ():
                there.setdefault(node, {})[resource] = nova
        with self._lock:
            for node in self._pending.keys() | there.keys():
                pending, entry = self._pending.get(node, {}), self._entries.get(node)
                about = {r: instances[r] for r in pending if r in instances} | there.get(node, {})
                reported = entry.report.by_uuid if entry is not None else {}
                kept = after_nova(node, reported, pending, about, began_s)
                if kept != pending:
                    self._replace(node, kept)
            self._cells |= frozenset(cells)

    def _replace(self, node: str, kept: PendingByUuid) -> None:
        self._pending[node] = kept
        if (entry := self._entries.get(node)) is not None:
            self._entries[node] = replace(entry, pending=kept, results={})
