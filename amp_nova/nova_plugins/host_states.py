"""What the agents reported, as one scheduler process knows it, and what it decided since.

One per process, shared by the filter and the weighers. Nothing here waits for anybody: reports
arrive in a thread of their own (``report_server``), readers take what is there.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from oslo_config import cfg

from amp_nova.core.booking import VcpuBooking
from amp_nova.core.room import Ask, Fit, Room, room
from amp_nova.core.snapshot import HostSnapshot, InstanceShare, decode
from amp_nova.exceptions import SnapshotInvalid

LOG = logging.getLogger(__name__)
FORGET_AFTER = 20
"""A host that is silent for so many times ``stale_after_s`` is forgotten."""
SAY_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Pending:
    """An instance that was sent to a host and that its agent has not reported yet."""

    ask: Ask
    until_s: float


@dataclass(slots=True)
class Entry:
    """One host: its last report, what was sent there since, and what follows from both.

    ``fits`` and ``scores`` remember answers by what was asked; a new state of the host is a new
    entry, so they never outlive what they rest on.
    """

    snapshot: HostSnapshot
    received_s: float
    pending: Mapping[str, Pending] = field(default_factory=dict)
    fits: dict[int, Fit] = field(default_factory=dict)
    scores: dict[object, float] = field(default_factory=dict)
    _room: Room | None = None

    def room(self) -> Room:
        """The room of the host, worked out at the first question."""
        if self._room is None:
            self._room = room(self.snapshot, pending=self.asks())
        return self._room

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
            if any(p.until_s <= now_s for p in entry.pending.values()):
                return self._expire(node, now_s)
        return entry

    def fresh(self, entry: Entry) -> bool:
        """Whether a report is not stale yet."""
        age_s = self._clock() - entry.received_s
        return bool(age_s <= self._options.amp_scheduler.stale_after_s)

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
                self._accept(snapshot)
        except SnapshotInvalid as exc:
            self._refuse(exc)
            return False
        return True

    def _accept(self, snapshot: HostSnapshot) -> None:
        now_s, origin = self._clock(), snapshot.origin
        age_s = self._wall_clock() - origin.time_s
        if age_s < -self._options.amp_scheduler.clock_skew_s:
            why = f"{origin.node} dates it {-age_s:.0f} s ahead: set its clock"
            raise SnapshotInvalid("future", why)
        if age_s > self._options.amp_scheduler.stale_after_s:
            raise SnapshotInvalid("old", f"{origin.node} made it {age_s:.0f} s ago")
        known = self._entries.get(origin.node)
        pending: Mapping[str, Pending] = {}
        if known is not None:
            before = known.snapshot.origin
            same = before.boot_id == origin.boot_id
            if origin.sequence <= before.sequence if same else origin.time_s <= before.time_s:
                raise SnapshotInvalid("old", f"a newer one of {origin.node} is known")
            self._arrived(known.snapshot, snapshot)
            known = self._entries[origin.node]
            pending = {
                resource: sent
                for resource, sent in known.pending.items()
                if sent.until_s > now_s and not _reported(snapshot, resource, sent)
            }
            if pending == known.pending and snapshot.same_state(known.snapshot):
                # The same objects again: what was worked out holds on.
                self._entries[origin.node] = replace(known, snapshot=snapshot, received_s=now_s)
                return
        self._entries[origin.node] = Entry(snapshot, now_s, pending)
        self._prune(now_s)

    def _arrived(self, before: HostSnapshot, after: HostSnapshot) -> None:
        """Instances that turn up on a host wait on no other one any more."""
        node = after.origin.node
        for resource in after.instance_of.keys() - before.instance_of.keys():
            if (sent := self._sent.get(resource)) is not None and sent != node:
                self._forget(resource)

    def decided(self, node: str, resource: str, ask: Ask) -> None:
        """Count an instance on the host it was sent to, until its agent reports it."""
        with self._lock:
            self._forget(resource)
            entry = self._entries.get(node)
            if entry is None:
                return
            until_s = self._clock() + self._options.amp_scheduler.pending_s
            pending = {**entry.pending, resource: Pending(ask, until_s)}
            self._entries[node] = Entry(entry.snapshot, entry.received_s, pending)
            self._sent[resource] = node

    def _forget(self, resource: str) -> None:
        node = self._sent.pop(resource, None)
        entry = None if node is None else self._entries.get(node)
        if node is not None and entry is not None and resource in entry.pending:
            pending = {r: p for r, p in entry.pending.items() if r != resource}
            self._entries[node] = Entry(entry.snapshot, entry.received_s, pending)

    def _expire(self, node: str, now_s: float) -> Entry:
        with self._lock:
            entry = self._entries[node]
            pending = {r: p for r, p in entry.pending.items() if p.until_s > now_s}
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
    return instance is not None and as_asked(instance) == sent.ask
