# SPDX-License-Identifier: Apache-2.0
"""The domains of one libvirt, cached: read again when an event says that they changed.

A cycle without events makes no call to libvirt; a periodic listing finds lost events.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from amp_nova.exceptions import HypervisorUnavailable, sentence
from amp_nova.host.libvirt.connection import WRITE, Connection, NotYet
from amp_nova.host.libvirt.domain_xml import DomainXml, Fallback, parse
from amp_nova.kernel import files
from amp_nova.model.observation import Domain

LOG = logging.getLogger(__name__)
SOCKETS = ("/run/libvirt/libvirt-sock-ro", "/run/libvirt/virtqemud-sock-ro")
ANSWER_S = 5.0
"""How long libvirt may take to answer: a longer wait would only delay the cycle."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """One domain: its id (-1 if it is not running), its definition, and libvirt's handle of it."""

    number: int
    xml: DomainXml
    handle: Any


class Hypervisor:
    """The domains of one libvirt; ``wake`` is called when one of them changed."""

    def __init__(
        self,
        uri: str,
        fallbacks: Sequence[Fallback] = (),
        timeout_s: float = ANSWER_S,
        resync_s: float = 10.0,
        wake: Callable[[], None] = lambda: None,
        *,
        writable: bool = False,
    ) -> None:
        self.available = False
        """Whether the last call to libvirt was answered."""
        self.connection = Connection(uri, timeout_s, self._on_change, writable=writable)
        self._fallbacks = tuple(fallbacks)
        self._resync_s = resync_s
        self._wake = wake
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self._due_s = 0.0
        self._listings: dict[str, _Listing] | None = None

    @property
    def out_of_sight(self) -> bool:
        """Whether libvirt does not answer, and listens at a socket that it made since.

        The agent's unit shows it the sockets for reading alone, as they were when it started.
        """
        if self.available:
            return False
        with contextlib.suppress(OSError):  # somebody has more sockets than it reads
            lines = files.text("/proc/net/unix").splitlines()
            away = {line.rpartition(" ")[2] for line in lines}.intersection(SOCKETS)
            return any(not (os.path.exists(p) and os.stat(p).st_nlink) for p in away)
        return False

    def use(self, fallbacks: Sequence[Fallback]) -> None:
        """Read every definition again, with other configured bookings."""
        if self._fallbacks != (now := tuple(fallbacks)):
            self._fallbacks = now
            with self._lock:
                self._changed |= set(self._listings or ())
                self._due_s = 0.0

    def domains(self) -> dict[str, DomainXml]:
        """Active domains by UUID, as of libvirt's last answer.

        QEMU outlives libvirt, so the agent keeps working while libvirt restarts. Raises
        ``HypervisorUnavailable`` if libvirt has never answered.
        """
        self.connection.begin(patient=self._listings is None)
        try:
            self._refresh()
        except NotYet:  # slow is not unavailable
            if self._listings is None:
                raise
        except HypervisorUnavailable as exc:
            if self._listings is None:
                raise
            if self.available:
                LOG.warning("%s; continuing with the last known domains", exc)
            self.available = False
        return {
            uuid: listing.xml
            for uuid, listing in (self._listings or {}).items()
            if listing.number >= 0
        }

    def inactive(self) -> dict[str, DomainXml]:
        """Domains that are defined but not running, by UUID, as of the last call of ``domains``."""
        return {
            uuid: listing.xml
            for uuid, listing in (self._listings or {}).items()
            if listing.number < 0
        }

    def definition(self, uuid: str) -> DomainXml:
        """A domain's definition as last read."""
        return self._here(uuid).xml

    def change(self, uuid: str, write: Callable[[Any], None], params: Mapping[str, object]) -> None:
        """Change a domain with ``write``; ``params``: what libvirt's event about it will report.

        The definition is not read again for that event. A change that libvirt does not finish in
        time continues, and the next change waits for its end. Raises ``HypervisorUnavailable`` if
        the change failed, or did not finish in time.
        """
        handle, name = self._here(uuid).handle, WRITE + uuid
        if self.connection.exhausted:
            raise NotYet(
                "this cycle has no time left to wait for libvirt; continuing with the next cycle"
            )
        self.connection.expect(uuid, params)

        def function() -> None:
            write(handle)

        if self.connection.late(name):
            self.connection.call(name, function)
        self.connection.call(name, function)

    def _here(self, uuid: str) -> _Listing:
        listing = (self._listings or {}).get(uuid)
        if listing is None:
            raise HypervisorUnavailable("libvirt no longer lists its domain")
        return listing

    def _on_change(self, uuid: str | None) -> None:
        """A domain changed or, without a UUID, the connection was closed."""
        with self._lock:
            self._due_s = 0.0
            if uuid is not None:
                self._changed.add(uuid)
        if uuid is not None:
            self._wake()

    def _refresh(self) -> None:
        now = time.monotonic()
        answered = self.connection.answered()
        with self._lock:
            if now <= self._due_s and not answered:
                return
            events, self._changed = self._changed, set()
            self._due_s = now + self._resync_s
        changed = events | answered
        try:
            self._list(changed, events)
        except BaseException:
            with self._lock:
                self._changed |= changed
                self._due_s = 0.0
            raise

    def _list(self, changed: set[str], events: set[str]) -> None:
        listed = self.connection.domains()
        earlier, listings = self._listings or {}, {}
        if self._listings is None:
            self.connection.begin(patient=False)
        for domain in listed:
            uuid, number = domain.UUIDString(), domain.ID()
            before = earlier.get(uuid)
            if before is not None and before.number == number and uuid not in changed:
                listings[uuid] = replace(before, handle=domain)
                continue
            if uuid in events and self.connection.late(uuid):
                self.read_again(uuid)  # the answer under way may be older than the event
            if (xml := self._describe(domain, before)) is not None:
                listings[uuid] = _Listing(number, xml, domain)
        self._listings = listings
        self.connection.keep({domain.UUIDString() for domain in listed})
        self.available = True

    def _describe(self, domain: Any, listing: _Listing | None) -> DomainXml | None:
        """A domain's definition; the last known one (or ``None``) if libvirt does not answer."""
        name, uuid = domain.name(), domain.UUIDString()
        late = self.connection.late(uuid)
        try:
            return parse(self.connection.call(uuid, lambda: domain.XMLDesc(0)), self._fallbacks)
        except ValueError as exc:
            problem = sentence(f"its definition cannot be read ({exc})")
            LOG.warning("%s: %s", name, problem)
            last = DomainXml(Domain(uuid, name, 0), None, {}) if listing is None else listing.xml
            return replace(last, domain=replace(last.domain, problem=problem))
        except HypervisorUnavailable as exc:
            if not late:
                level = logging.INFO if isinstance(exc, NotYet) else logging.WARNING
                LOG.log(level, "%s: %s", name, exc)
            if not self.connection.late(uuid):  # it failed
                self.read_again(uuid)
            return listing.xml if listing else None

    def read_again(self, uuid: str) -> None:
        """Read a domain's definition in the next cycle."""
        with self._lock:
            self._changed.add(uuid)
            self._due_s = 0.0
