"""What the agents reported, as one scheduler process knows it, and what it decided since.

One per process, shared by the filter and the weighers. Nothing here waits for anybody: reports
arrive in a thread of their own (``report_server``), readers take what is there.
"""

import logging
import math
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from oslo_config import cfg

from amp_nova.exceptions import SnapshotInvalid
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.scheduling import placement_score
from amp_nova.scheduling.host_fit import Ask, Fit, Room, fit, room
from amp_nova.scheduling.placement_score import Market, Outlook
from amp_nova.wire.host_report import HostSnapshot, InstanceShare, decode

LOG = logging.getLogger(__name__)
K = TypeVar("K")
V = TypeVar("V")
FORGET_AFTER = 20
"""A host that is silent for so many times ``stale_after_s`` is forgotten."""
SAY_EVERY_S = 60.0
TENTATIVE_S = 10.0
"""How long room is kept for a claim that is being made."""
MEASURED_MAX = 200_000
"""Instances whose measurements are remembered, the latest: also while they are on no host."""
PROFILES_MAX = 10_000
PROFILE_MAX = 32
"""Instances of one flavor and image whose measurements make its profile, the latest."""


def _stands() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Pending:
    """An instance that was sent to a host and that its agent has not reported yet.

    ``undone`` says whether Nova has dropped the decision since: of several instances that are asked
    for at once, all find a host or none gets one. ``away``: it was on the host, and its agent does
    not see it any more. It may be stopped, or its host starting again: its room is its own until
    Nova has it there no longer.
    """

    ask: Ask
    until_s: float
    undone: Callable[[], bool] = _stands
    tentative: bool = False
    """Whether it is about to be decided: its claim is being made."""
    away: bool = False

    def over(self, now_s: float) -> bool:
        """Whether it counts no longer."""
        return self.until_s <= now_s or self.undone()


@dataclass(slots=True)
class Entry:
    """One host: its last report, what was sent there since, and what follows from both.

    ``fits`` and ``outlooks`` remember answers by what was asked; a new state of the host is a new
    entry, so they never outlive what they rest on.
    """

    snapshot: HostSnapshot
    received_s: float
    pending: Mapping[str, Pending] = field(default_factory=dict)
    fits: dict[int, Fit] = field(default_factory=dict)
    outlooks: dict[object, Outlook] = field(default_factory=dict)
    away: frozenset[str] = field(init=False)
    """Instances that its agent does not see any more, and whose room is kept."""
    _room: Room | None = None
    _market: Market | None = None

    def __post_init__(self) -> None:
        self.away = frozenset(r for r, p in self.pending.items() if p.away)

    def usable(self, oldest_s: float) -> bool:
        """Whether the report is not older than that, of an agent that is well."""
        return self.received_s >= oldest_s and self.snapshot.healthy

    def room(self) -> Room:
        """The room of the host, worked out at the first question."""
        if self._room is None:
            self._room = room(self.snapshot, pending=self.asks())
        return self._room

    def market(self) -> Market:
        """Its best effort and what they share, worked out at the first question."""
        if self._market is None:
            free = {lane.core_type: lane.free_cores for lane in self.room().lanes}
            self._market = placement_score.market(self.snapshot, free)
        return self._market

    def asks(self) -> dict[str, Ask]:
        """What was sent there and is not reported yet."""
        return {resource: pending.ask for resource, pending in self.pending.items()}

    def room_without(self, resource: str) -> Room:
        """The room it would have if one instance left it."""
        return room(self.snapshot, resource, self.asks())


def as_asked(instance: InstanceShare) -> Ask:
    """A reported instance's booking in the form in which the scheduler asked for it."""
    return Ask(
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
    """Reports by node; thread-safe. Readers never wait for a lock."""

    def __init__(
        self,
        options: cfg.ConfigOpts,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._measured: dict[str, float] = {}
        self._profiles: dict[tuple[str, str], dict[str, float]] = {}
        self._sent: dict[str, str] = {}
        self._asks: dict[Ask, int] = {}
        self._said_s: dict[str, float] = {}
        self._pruned_s = clock()
        self.refused: Counter[str] = Counter()
        """Reports that were refused, by kind: old, future, version, malformed, oversized."""

    def entry(self, node: str) -> Entry | None:
        """What is known of a host, however old; ``None`` if nothing."""
        entry = self._entries.get(node)
        if entry is not None and entry.pending:
            now_s = self._clock()
            if any(p.over(now_s) for p in entry.pending.values()):
                return self._expire(node, now_s)
        return entry

    def oldest_s(self) -> float:
        """A report that was received before this is stale by now."""
        return float(self._clock() - self._options.amp_scheduler.stale_after_s)

    def sensitivity(self, resource: str, flavor: str, image: str) -> float | None:
        """What was measured of an instance, else of others of its flavor and image."""
        found = self._measured.get(resource)
        return self._profile(flavor, image) if found is None else found

    def _profile(self, flavor: str, image: str) -> float | None:
        known = self._profiles.get((flavor, image)) if image else None
        return statistics.median(known.values()) if known else None

    def _learn(self, snapshot: HostSnapshot) -> None:
        """Remember how much instances gain from fast cores, and what they were made from."""
        for instance in snapshot.instances:
            found = placement_score.measured(instance, snapshot.topology)
            if found is None:
                continue
            _keep(self._measured, instance.resource, found, MEASURED_MAX)
            if instance.image:
                made_from = (instance.flavor, instance.image)
                profile = dict(self._profiles.get(made_from, {}))
                _keep(profile, instance.resource, found, PROFILE_MAX)
                # A new one, since readers may be going through the old one.
                _keep(self._profiles, made_from, profile, PROFILES_MAX)

    def nodes(self) -> Iterable[str]:
        """The hosts that have reported."""
        return list(self._entries)

    def key(self, ask: Ask) -> int:
        """A small number for what is asked, under which entries remember their answer."""
        found = self._asks.get(ask)
        if found is None:
            with self._lock:
                found = self._asks.setdefault(ask, len(self._asks))
        return found

    def accept(self, text: object) -> bool:
        """Take a report over, if it can be used and is newer than what is known."""
        try:
            snapshot = decode(text)
            with self._lock:
                entry = self._accept(snapshot)
            # Here and now, so that no request has to wait for it.
            entry.market()
        except SnapshotInvalid as exc:
            self._refuse(exc)
            return False
        return True

    def _accept(self, snapshot: HostSnapshot) -> Entry:
        now_s, origin = self._clock(), snapshot.origin
        age_s = self._wall_clock() - origin.time_s
        if age_s < -self._options.amp_scheduler.clock_skew_s:
            why = f"{origin.node} dates it {-age_s:.0f} s ahead: set its clock"
            raise SnapshotInvalid("future", why)
        if age_s > self._options.amp_scheduler.stale_after_s:
            raise SnapshotInvalid("old", f"{origin.node} made it {age_s:.0f} s ago")
        known = self._entries.get(origin.node)
        pending: Mapping[str, Pending] = {}
        if known is None:
            self._learn(snapshot)
        else:
            before = known.snapshot.origin
            same = before.boot_id == origin.boot_id
            if origin.sequence <= before.sequence if same else origin.time_s <= before.time_s:
                raise SnapshotInvalid("old", f"a newer one of {origin.node} is known")
            self._learn(snapshot)
            self._arrived(known.snapshot, snapshot)
            known = self._entries[origin.node]
            pending = {
                resource: sent
                for resource, sent in {**_away(known.snapshot, snapshot), **known.pending}.items()
                if not sent.over(now_s) and not _reported(snapshot, resource, sent)
            }
            if pending == known.pending and snapshot.same_state(known.snapshot):
                # The same objects again: what was worked out holds on.
                again = replace(known, snapshot=snapshot, received_s=now_s)
                self._entries[origin.node] = again
                return again
        entry = self._entries[origin.node] = Entry(snapshot, now_s, pending)
        self._prune(now_s)
        return entry

    def _arrived(self, before: HostSnapshot, after: HostSnapshot) -> None:
        """Instances that turn up on a host wait on no other one any more."""
        node = after.origin.node
        for resource in after.instance_of.keys() - before.instance_of.keys():
            if (sent := self._sent.get(resource)) is not None and sent != node:
                self._forget(resource)

    def decided(
        self, node: str, resource: str, ask: Ask, undone: Callable[[], bool] = _stands
    ) -> None:
        """Count an instance on the host it was sent to, until its agent reports it."""
        with self._lock:
            self._forget(resource)
            entry = self._entries.get(node)
            if entry is None:
                return
            until_s = self._clock() + self._options.amp_scheduler.pending_s
            self._send(node, entry, resource, Pending(ask, until_s, undone))

    def reserve(self, node: str, resource: str, ask: Ask) -> bool:
        """Take the room of a host for an instance, if it is still there: one after the other.

        Between a filter's answer and Nova's decision other requests may have been decided. An
        instance that has a host already keeps it, and takes no second one.
        """
        with self._lock:
            sent = self._sent.get(resource)
            had = None if sent is None else self._entries[sent].pending.get(resource)
            if had is not None and not had.tentative and not had.over(self._clock()):
                return True
            self._forget(resource)
            entry = self._entries.get(node)
            if entry is None:
                return True
            here = entry.room()
            if resource in entry.snapshot.instance_of or resource in entry.pending:
                here = entry.room_without(resource)
            if fit(here, ask).refused is not None:
                return False
            until_s = self._clock() + TENTATIVE_S
            self._send(node, entry, resource, Pending(ask, until_s, tentative=True))
            return True

    def _send(self, node: str, entry: Entry, resource: str, sent: Pending) -> None:
        pending = {**entry.pending, resource: sent}
        self._entries[node] = Entry(entry.snapshot, entry.received_s, pending)
        self._sent[resource] = node

    def _forget(self, resource: str) -> None:
        node = self._sent.pop(resource, None)
        entry = None if node is None else self._entries.get(node)
        if node is not None and entry is not None and resource in entry.pending:
            pending = {r: p for r, p in entry.pending.items() if r != resource}
            self._entries[node] = Entry(entry.snapshot, entry.received_s, pending)

    def gone(self, node: str, there: Container[str]) -> Entry:
        """Give away the room of instances that are ``away``, but for those that Nova has there."""
        with self._lock:
            entry = self._entries[node]
            kept = {r: p for r, p in entry.pending.items() if not p.away or r in there}
            if len(kept) != len(entry.pending):
                entry = self._entries[node] = Entry(entry.snapshot, entry.received_s, kept)
            return entry

    def _expire(self, node: str, now_s: float) -> Entry:
        with self._lock:
            entry = self._entries[node]
            pending = {r: p for r, p in entry.pending.items() if not p.over(now_s)}
            if len(pending) != len(entry.pending):
                entry = Entry(entry.snapshot, entry.received_s, pending)
                self._entries[node] = entry
            return entry

    def _prune(self, now_s: float) -> None:
        """Forget hosts that are gone for good, and decisions that are long over."""
        stale_s = self._options.amp_scheduler.stale_after_s
        if now_s - self._pruned_s < stale_s:
            return
        self._pruned_s = now_s
        oldest_s = now_s - FORGET_AFTER * stale_s
        self._entries = {n: e for n, e in self._entries.items() if e.received_s >= oldest_s}
        waiting = {r for e in self._entries.values() for r in e.pending}
        self._sent = {r: n for r, n in self._sent.items() if r in waiting}

    def _refuse(self, exc: SnapshotInvalid) -> None:
        self.refused[exc.kind] += 1
        now_s = self._clock()
        if now_s - self._said_s.get(exc.kind, -SAY_EVERY_S) >= SAY_EVERY_S:
            self._said_s[exc.kind] = now_s
            LOG.warning("%s; %d of that kind so far", exc, self.refused[exc.kind])


def _reported(snapshot: HostSnapshot, resource: str, sent: Pending) -> bool:
    """Whether an instance is on the host with the booking with which it was sent there."""
    instance = snapshot.instance_of.get(resource)
    return instance is not None and (sent.away or as_asked(instance) == sent.ask)


def _away(before: HostSnapshot, after: HostSnapshot) -> dict[str, Pending]:
    """Instances with a booking that a host's agent saw before and does not see any more."""
    gone = before.instance_of.keys() - after.instance_of.keys()
    found = (before.instance_of[resource] for resource in gone)
    return {i.resource: Pending(as_asked(i), math.inf, away=True) for i in found if i.booked}


def _keep(found: dict[K, V], key: K, value: V, most: int) -> None:
    """Put a value last in a dictionary that holds so many, the latest."""
    found.pop(key, None)
    found[key] = value
    if len(found) > most:
        del found[next(iter(found))]
