# SPDX-License-Identifier: Apache-2.0
"""A libvirt connection whose calls have a deadline, reopened when it breaks.

libvirt may answer late or never while it holds a domain's lock, so every call runs in its own
thread. A call that never returns is abandoned together with its thread. All calls of one cycle
share the time that the cycle may wait; a later cycle takes an answer that arrives after that.
"""

import contextlib
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import libvirt

from amp_nova.exceptions import HypervisorUnavailable
from amp_nova.host.libvirt.domain_xml import MARK_URI

LOG = logging.getLogger(__name__)
T = TypeVar("T")

KEEPALIVE_S = 5
KEEPALIVE_MISSES = 3
RECONNECT_S = 2.0
ACTIVE_AND_INACTIVE = 0
EVENTS = (
    libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
    libvirt.VIR_DOMAIN_EVENT_ID_TUNABLE,
    libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE,
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
)
_OPEN, _LIST = "open", "list"
WRITE = "write "
"""Prefix of the names of calls that change a domain; the domain's UUID follows."""


@functools.cache
def _run_events() -> None:
    """Start libvirt's event loop once per process; it must run before a connection is opened."""
    libvirt.virEventRegisterDefaultImpl()
    libvirt.registerErrorHandler(lambda _context, _error: None, None)

    def forever() -> None:
        while True:
            try:
                libvirt.virEventRunDefaultImpl()
            except libvirt.libvirtError as exc:
                LOG.warning("libvirt's event loop: %s", exc)
                time.sleep(1)

    threading.Thread(target=forever, name="libvirt-events", daemon=True).start()


def _start(function: Callable[[], T]) -> Future[T]:
    """Call in a daemon thread, which does not keep the process alive if it hangs."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as exc:  # noqa: BLE001  # raised again by result()
            future.set_exception(exc)

    threading.Thread(target=run, name="libvirt-call", daemon=True).start()
    return future


class NotYet(HypervisorUnavailable):
    """The call is running and its deadline has not passed; a later cycle takes the answer."""


class _News:
    """Passes on events that report something new; ``expected``: what this agent set, by domain."""

    def __init__(self, changed: Callable[[str | None], None]) -> None:
        self.changed = changed
        self.expected: dict[str, dict[str, object]] = {}

    def event(self, _conn: Any, domain: Any, *details: Any) -> None:
        uuid = domain.UUIDString()
        expected = self.expected.get(uuid)
        if expected is not None:
            params = details[0] if details else None
            if isinstance(params, dict) and params.items() <= expected.items():
                return
            if MARK_URI in details:  # amp-nova's own metadata
                return
        self.changed(uuid)


class Connection:
    """One connection to the hypervisor at ``uri``.

    ``changed`` is called with the UUID of a domain that changed, or with ``None`` when libvirt
    closed the connection and any domain may have changed.
    """

    def __init__(
        self,
        uri: str,
        timeout_s: float,
        changed: Callable[[str | None], None],
        *,
        writable: bool = False,
    ) -> None:
        self.calls = 0
        """Calls made to libvirt."""
        self.cycle_wait_s = math.inf
        """How long one cycle may wait for all its calls together."""
        self._left_s = math.inf
        self._uri = uri
        self._timeout_s = timeout_s
        self._news = _News(changed)
        self.writable = writable
        """Whether limits and affinities are written through it."""
        self._conn: Any = None
        self._retry_s = 0.0
        self._late: dict[str, tuple[Future[Any], float]] = {}
        """Calls that are no longer waited for, and when each began."""

    def begin(self, *, patient: bool) -> None:
        """Begin a cycle; a ``patient`` one waits for every call until its deadline."""
        self._left_s = math.inf if patient else self.cycle_wait_s

    def domains(self) -> list[Any]:
        """All domains; a listing that misses its deadline drops the connection."""
        conn = self._connected()
        try:
            return self.call(_LIST, lambda: conn.listAllDomains(ACTIVE_AND_INACTIVE))
        except NotYet:
            raise
        except HypervisorUnavailable:
            if self._late.pop(_LIST, None) is not None:
                self.drop()
            raise

    def hostname(self) -> str:
        """The host's name as libvirt reports it: Nova's hypervisor hostname."""
        conn = self._connected()
        return self.call("hostname", lambda: str(conn.getHostname()))

    def call(self, name: str, function: Callable[[], T]) -> T:
        """Run ``function`` with a deadline.

        While a late call of this ``name`` is running, no other is started, so that a hanging call
        is waited for only once. An answer that arrives after the deadline is out of date and
        discarded, except when the call opens the connection. Raises ``NotYet`` if the call is
        running and its deadline has not passed, ``HypervisorUnavailable`` if there was no answer
        in time, or a libvirt error.
        """
        now_s = time.monotonic()
        call, began_s = self._late.pop(name, (None, now_s))
        waited = call is not None
        overdue = now_s - began_s >= self._timeout_s
        if call is None or (name != _OPEN and call.done() and overdue):
            self.calls += 1
            call, began_s, waited, overdue = _start(function), now_s, False, False
        try:
            outcome: T = call.result(0.0 if waited else min(self._left_s, self._timeout_s))
        except TimeoutError:
            self._late[name] = call, began_s
            if not overdue and time.monotonic() - began_s < self._timeout_s:
                raise NotYet("libvirt has not answered yet") from None
            raise HypervisorUnavailable(
                f"libvirt did not answer within {self._timeout_s:g} s"
            ) from None
        except libvirt.libvirtError as exc:
            if self._conn is not None and not _alive(self._conn):
                self.drop()
            raise HypervisorUnavailable(f"libvirt at {self._uri}: {exc}") from exc
        finally:
            self._left_s = max(0.0, self._left_s - (time.monotonic() - now_s))
        return outcome

    @property
    def exhausted(self) -> bool:
        """Whether this cycle has used up the time that it may wait."""
        return self._left_s <= 0.0

    def late(self, name: str) -> bool:
        """Whether the last call of this name missed its deadline."""
        return name in self._late

    def answered(self) -> set[str]:
        """Names of the late calls that have returned by now."""
        names = {name for name, (call, _) in self._late.items() if name != _OPEN and call.done()}
        return {name for name in names if not name.startswith(WRITE)}

    def keep(self, names: Collection[str]) -> None:
        """Forget the late calls of all other names."""
        kept = {_OPEN, *names, *(WRITE + uuid for uuid in names)}
        self._late = {name: call for name, call in self._late.items() if name in kept}
        self._news.expected = {u: params for u, params in self._news.expected.items() if u in names}

    def expect(self, uuid: str, params: Mapping[str, object]) -> None:
        """From now on, ignore events of a domain that report nothing but ``params``."""
        self._news.expected[uuid] = {**self._news.expected.get(uuid, {}), **params}

    def drop(self) -> None:
        """Close the connection, without waiting for libvirt."""
        conn, self._conn = self._conn, None
        if conn is not None:
            _start(conn.close)

    def _connected(self) -> Any:
        if self._conn is not None:
            return self._conn
        if (now := time.monotonic()) < self._retry_s:
            raise HypervisorUnavailable(f"cannot connect to libvirt at {self._uri}")
        self._retry_s = now + RECONNECT_S
        _run_events()
        self._conn = self.call(_OPEN, self._open)
        LOG.info("connected to libvirt at %s", self._uri)
        return self._conn

    def _open(self) -> Any:
        conn = (libvirt.open if self.writable else libvirt.openReadOnly)(self._uri)
        with contextlib.suppress(libvirt.libvirtError):  # not every driver supports it
            conn.setKeepAlive(KEEPALIVE_S, KEEPALIVE_MISSES)
        with contextlib.suppress(libvirt.libvirtError):
            conn.registerCloseCallback(self._on_close, None)
        for event in EVENTS:
            try:
                conn.domainEventRegisterAny(None, event, self._news.event, None)
            except libvirt.libvirtError as exc:  # the periodic listing finds changes as well
                LOG.warning("libvirt does not report events of kind %d: %s", event, exc)
        return conn

    def _on_close(self, conn: Any, reason: int, _opaque: Any) -> None:
        if conn is not self._conn:  # it was dropped before
            return
        self._conn = None
        self._news.changed(None)
        LOG.warning("libvirt closed the connection (reason %d)", reason)


def _alive(conn: Any) -> bool:
    try:
        return bool(conn.isAlive())
    except libvirt.libvirtError:
        return False
