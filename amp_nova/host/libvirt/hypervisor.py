"""The domains of one libvirt: listed now and then, read again when an event says they changed.

libvirt is asked as little as possible: a cycle in which nothing happened makes no call at all.
Every call has a deadline, since libvirt answers late or never while it holds a domain's lock.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import libvirt

from amp_nova.exceptions import HypervisorUnavailable
from amp_nova.host.libvirt.domain_xml import DomainXml, Fallback, parse
from amp_nova.model.observation import Domain

LOG = logging.getLogger(__name__)
T = TypeVar("T")

KEEPALIVE_S = 5
KEEPALIVE_MISSES = 3
RECONNECT_S = 2.0
_OPEN, _LIST = "open", "list"
_loop_lock = threading.Lock()
_loop_running = False


def _run_events() -> None:
    """Start libvirt's event loop, once a process: it must be there before a connection is."""
    global _loop_running
    with _loop_lock:
        if _loop_running:
            return
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
        _loop_running = True


class _Call(Generic[T]):
    """One call to libvirt, in a thread of its own: one that never returns is left behind."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._outcome: list[T] = []
        self._error: list[Exception] = []
        self._thread = threading.Thread(
            target=self._run, args=(function,), name="libvirt-call", daemon=True
        )
        self._thread.start()

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._outcome.append(function())
        except Exception as exc:  # noqa: BLE001  # it is raised where the outcome is asked for
            self._error.append(exc)

    def answered(self, timeout_s: float = 0.0) -> bool:
        """Whether it ended, within this time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def outcome(self) -> T:
        """What it returned; raises what it raised."""
        if self._error:
            raise self._error[0]
        return self._outcome[0]


class Hypervisor:
    """One libvirt connection, made again when it breaks, and the active domains behind it."""

    def __init__(
        self,
        uri: str,
        fallbacks: Sequence[Fallback] = (),
        timeout_s: float = 5.0,
        resync_s: float = 10.0,
        wake: Callable[[], None] = lambda: None,
        wanted: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        """``wake`` is called when something happened; only domains of ``wanted`` names count."""
        self.calls = 0
        self.available = False
        self._uri = uri
        self._fallbacks = tuple(fallbacks)
        self._timeout_s = timeout_s
        self._resync_s = resync_s
        self._wake = wake
        self._wanted = wanted
        self._conn: Any = None
        self._late: dict[str, _Call[Any]] = {}
        self._retry_s = 0.0
        self._listed_s = 0.0
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self._relist = True
        self._known: dict[str, tuple[int, DomainXml]] = {}

    def domains(self) -> dict[str, DomainXml]:
        """Active domains by UUID, as of the last time libvirt answered.

        ``HypervisorUnavailable`` only as long as it has never answered: QEMU outlives libvirt, so
        bookings are kept while libvirt restarts.
        """
        try:
            self._refresh()
        except HypervisorUnavailable as exc:
            if not self._known and not self._listed_s:
                raise
            if self.available:
                LOG.warning("%s; going on with the domains known so far", exc)
            self.available = False
        return {uuid: xml for uuid, (_, xml) in self._known.items()}

    def hostname(self) -> str:
        """This host's name as libvirt knows it, which is what Nova calls the hypervisor."""
        conn = self._connected()
        return self._call("the host's name", lambda: str(conn.getHostname()))

    def close(self) -> None:
        """Close the connection."""
        self._drop()

    def _refresh(self) -> None:
        now = time.monotonic()
        with self._lock:
            changed, relist = self._changed, self._relist
            self._changed, self._relist = set(), False
        changed |= {u for u, c in self._late.items() if u not in (_OPEN, _LIST) and c.answered()}
        if not (changed or relist or now - self._listed_s > self._resync_s):
            return
        try:
            self._list(changed, now)
        except BaseException:
            with self._lock:
                self._changed |= changed
                self._relist = True
            raise

    def _list(self, changed: set[str], now: float) -> None:
        conn = self._connected()
        only = libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
        try:
            active = self._call(_LIST, lambda: conn.listAllDomains(only))
        except HypervisorUnavailable:
            if self._late.pop(_LIST, None) is not None:
                self._drop()
            raise
        active = [domain for domain in active if self._wanted(domain.name())]
        found: dict[str, tuple[int, DomainXml]] = {}
        for domain in active:
            uuid, number = domain.UUIDString(), domain.ID()
            known = self._known.get(uuid)
            if known is not None and known[0] == number and uuid not in changed:
                found[uuid] = known
            elif (xml := self._describe(domain, known)) is not None:
                found[uuid] = (number, xml)
        self._known = found
        here = {_OPEN, *(domain.UUIDString() for domain in active)}
        self._late = {what: call for what, call in self._late.items() if what in here}
        self._listed_s = now
        self.available = True

    def _describe(self, domain: Any, known: tuple[int, DomainXml] | None) -> DomainXml | None:
        """A domain's XML, or what was known of it when it does not answer in time."""
        name, uuid = domain.name(), domain.UUIDString()
        late = uuid in self._late
        try:
            return parse(self._call(uuid, lambda: domain.XMLDesc(0)), self._fallbacks)
        except ValueError as exc:
            problem = f"its definition cannot be read ({exc})"
            LOG.warning("%s: %s", name, problem)
            return DomainXml(Domain(uuid, name, 0, problem=problem), None, {})
        except HypervisorUnavailable as exc:
            if not late:
                LOG.warning("%s: %s", name, exc)
            if uuid not in self._late:
                with self._lock:
                    self._changed.add(uuid)
            return known[1] if known else None

    def _connected(self) -> Any:
        if self._conn is not None:
            return self._conn
        if (now := time.monotonic()) < self._retry_s:
            raise HypervisorUnavailable(f"libvirt at {self._uri} is not reached")
        self._retry_s = now + RECONNECT_S
        _run_events()
        self._conn = self._call(_OPEN, self._open)
        LOG.info("connected to libvirt at %s", self._uri)
        return self._conn

    def _open(self) -> Any:
        conn = libvirt.open(self._uri)
        with contextlib.suppress(libvirt.libvirtError):  # not every driver has it
            conn.setKeepAlive(KEEPALIVE_S, KEEPALIVE_MISSES)
        with contextlib.suppress(libvirt.libvirtError):
            conn.registerCloseCallback(self._on_close, None)
        events = [
            libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
            libvirt.VIR_DOMAIN_EVENT_ID_TUNABLE,
            libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE,
            libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
        ]
        for event in events:
            try:
                conn.domainEventRegisterAny(None, event, self._on_event, None)
            except libvirt.libvirtError as exc:  # the periodic listing finds it all the same
                LOG.warning("libvirt tells no events of kind %d: %s", event, exc)
        return conn

    def _on_event(self, _conn: Any, domain: Any, *_details: Any) -> None:
        with self._lock:
            self._changed.add(domain.UUIDString())
            self._relist = True
        self._wake()

    def _on_close(self, conn: Any, reason: int, _opaque: Any) -> None:
        with self._lock:
            if conn is not self._conn:  # one that was given up before
                return
            self._conn = None
            self._relist = True
        LOG.warning("libvirt closed the connection (reason %d)", reason)

    def _drop(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            threading.Thread(target=_quietly_close, args=(conn,), daemon=True).start()

    def _call(self, what: str, function: Callable[[], T]) -> T:
        """Call libvirt, with a deadline; ``what`` names the call.

        One that has not been answered since an earlier cycle is not made again: it costs its
        deadline only once.
        """
        call, timeout_s = self._late.pop(what, None), 0.0
        if call is None or (what != _OPEN and call.answered()):  # a late answer is out of date
            self.calls += 1
            call, timeout_s = _Call(function), self._timeout_s
        if not call.answered(timeout_s):
            self._late[what] = call
            raise HypervisorUnavailable(f"libvirt did not answer in {self._timeout_s:g} s")
        try:
            outcome: T = call.outcome()
        except libvirt.libvirtError as exc:
            if self._conn is not None and not _alive(self._conn):
                self._drop()
            raise HypervisorUnavailable(f"libvirt at {self._uri}: {exc}") from exc
        return outcome


def _alive(conn: Any) -> bool:
    try:
        return bool(conn.isAlive())
    except libvirt.libvirtError:
        return False


def _quietly_close(conn: Any) -> None:
    with contextlib.suppress(libvirt.libvirtError):
        conn.close()


def with_incarnation(xml: DomainXml, incarnation: str) -> DomainXml:
    """The same domain, told apart from its earlier lives."""
    return replace(xml, domain=replace(xml.domain, incarnation=incarnation))
