"""The agent's HTTP server: cheroot with few connections, each short, so that no client blocks it.

When ``CONNECTIONS_MAX`` are open, the oldest that has not sent its request is closed in favour of
the next, so that idle connections cannot block a scrape.
"""

import contextlib
import gzip
import ipaddress
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from cheroot import wsgi
from cheroot.errors import FatalSSLAlert
from cheroot.makefile import MakeFile
from cheroot.server import HTTPConnection, HTTPRequest
from cheroot.ssl import Adapter

from amp_nova.exceptions import ConfigInvalid
from amp_nova.private_files import check_private

LOG = logging.getLogger(__name__)
CONNECTIONS_MAX = 16
CONNECTION_S = 5.0
REQUEST_BYTES_MAX = 16384
BEAT_S = 1.0
RENEWAL_S = 60.0
"""How often certificates are read again."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may load besides a page: nothing (Content-Security-Policy)."""
_BACKLOG = 1024
_PART_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Page:
    """An HTTP response.

    ``gzipped``: the body is compressed; a client that does not accept this gets it decompressed.
    """

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    gzipped: bool = False


Route = Callable[[], Page]
"""Returns the page of one path."""


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Where and to whom to serve, as the options of ``[exporter]`` with the same names."""

    address: str = "127.0.0.1"
    port: int = 0
    allowed_hosts: Collection[str] = ()
    cert_file: str | None = None
    key_file: str | None = None
    client_ca_file: str | None = None


class WebServer:
    """Serves ``routes``, by path."""

    def __init__(self, routes: Mapping[str, Route], settings: WebSettings) -> None:
        """Read certificate and key; raises ``ConfigInvalid`` if they cannot be used."""
        self._routes, self._settings = routes, settings
        secured = settings.cert_file or settings.key_file or settings.client_ca_file
        self._tls = _Tls(settings) if secured else None
        self._names: frozenset[str] = frozenset()

    @property
    def scheme(self) -> str:
        """``http`` or ``https``."""
        return "https" if self._tls else "http"

    def bind(self) -> "HttpServer":
        """A server that accepts connections, in threads that end with the process.

        Raises:
            ConfigInvalid: the address cannot be bound.
        """
        own = (socket.gethostname(), socket.getfqdn(), self._settings.address, "localhost")
        names = (*own, own[0].partition(".")[0], *self._settings.allowed_hosts)
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        address, port = self._settings.address, self._settings.port
        server = HttpServer((address, port), self._answer, numthreads=CONNECTIONS_MAX)
        server.ssl_adapter = self._tls
        try:
            server.accepting.start()
            server.bound.result()
        except OSError as exc:
            reason = str(exc).rpartition("] ")[2].rstrip(")")  # cheroot wraps it in a text
            raise ConfigInvalid(
                f"cannot serve metrics on {address}:{port} ({reason}): set another [exporter] "
                "address or port"
            ) from exc
        return server

    def run(self, server: "HttpServer", beat: Callable[[], bool]) -> None:
        """Watch over connections and certificates until ``beat`` returns ``False``, then stop.

        ``beat`` is called about every second.
        """
        try:
            while beat() and server.accepting.is_alive():
                server.close_older(CONNECTION_S - BEAT_S)
                if self._tls:
                    self._tls.renew()
                server.accepting.join(BEAT_S)
        finally:
            server.close_older(0.0)
            server.stop()

    def _answer(
        self, request: dict[str, Any], start: Callable[[str, list[tuple[str, str]]], object]
    ) -> Iterable[bytes]:
        """The WSGI application."""
        page = self._page(request)
        body, unzip = page.body, False
        if page.gzipped and not _accepts_gzip(request.get("HTTP_ACCEPT_ENCODING", "")):
            body, unzip = gzip.decompress(body), True
        fields = {
            "Content-Type": page.content_type,
            **page.headers,
            **({"Vary": "Accept-Encoding"} if page.gzipped else {}),
            **({"Content-Encoding": "gzip"} if page.gzipped and not unzip else {}),
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
        }
        start(f"{page.status.value} {page.status.phrase}", [*fields.items()])
        if request["REQUEST_METHOD"] == "HEAD":
            return ()
        # In parts, because cheroot copies each several times.
        return (body[at : at + _PART_BYTES] for at in range(0, len(body), _PART_BYTES))

    def _page(self, request: Mapping[str, Any]) -> Page:
        if request["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _plain(
                HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are supported", Allow="GET, HEAD"
            )
        host = request.get("HTTP_HOST")  # HTTP/1.0 has none, and no browser speaks that
        if host is not None and not _is_allowed(host, self._names):
            return _plain(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"host name {host[:100]!r} is not allowed: add it to [exporter] allowed_hosts, or "
                "use the IP address",
            )
        path = request["PATH_INFO"]
        route = self._routes.get(path)
        if route is None:
            return _plain(HTTPStatus.NOT_FOUND, f"not found; try {', '.join(sorted(self._routes))}")
        try:
            return route()
        except Exception:  # the last resort: a defect of one page is its client's alone
            LOG.exception("cannot serve %s", path)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error: see the agent's log")


def _accepts_gzip(field: str) -> bool:
    """Whether an Accept-Encoding field names gzip with another weight than 0 (RFC 9110, 12.5.3)."""
    codings = dict(each.replace(" ", "").partition(";")[::2] for each in field.lower().split(","))
    return re.fullmatch(r"q=0(\.0*)?", codings.get("gzip", "q=0")) is None


def _is_allowed(host: str, names: Collection[str]) -> bool:
    """Whether a Host header is an IP address or one of these names.

    Without this check a web site could let its own name resolve to this host, and its script could
    read the page through a browser here (DNS rebinding).
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.rstrip(".") in names
    return True


def _plain(status: HTTPStatus, text: str, **headers: str) -> Page:
    return Page(f"{text}\n".encode(), status=status, headers=headers)


class _HttpRequest(HTTPRequest):
    def respond(self) -> None:
        self.conn.received = True
        super().respond()


class _Connection(HTTPConnection):
    RequestHandlerClass = _HttpRequest
    received = False
    """Whether the whole request has been received."""

    def communicate(self) -> bool:
        """Answer one request; nothing that a client does ends the worker's thread."""
        try:
            if isinstance(self.socket, ssl.SSLSocket):
                self.socket.do_handshake()
            super().communicate()  # type: ignore[no-untyped-call]
        except Exception:  # the last resort: before cheroot 10 it would end the worker
            LOG.debug("a client was not answered", exc_info=True)
        return False

    def abort(self) -> None:
        """Let a worker that waits for the client, or the next that takes it, find it closed."""
        with contextlib.suppress(OSError):  # it was closed already
            # Not ssl's shutdown, which would interfere with the worker.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it, whatever state it is in."""
        self.server.opened.pop(self, None)
        with contextlib.suppress(OSError):
            super().close()


class HttpServer(wsgi.Server):
    """cheroot's server with bounds on the number and duration of connections."""

    ConnectionClass = _Connection
    keep_alive_conn_limit = 0
    max_request_header_size = max_request_body_size = REQUEST_BYTES_MAX

    def __init__(self, address: tuple[str, int], app: Any, numthreads: int) -> None:
        super().__init__(
            address,
            app,
            numthreads=numthreads,
            server_name="amp-nova",
            request_queue_size=_BACKLOG,
            timeout=CONNECTION_S,  # type: ignore[arg-type]  # a float is a timeout, too
            accepted_queue_size=numthreads,
        )
        self.opened: dict[_Connection, float] = {}
        """Connections, oldest first, and since when they have been open."""
        self.accepting = threading.Thread(target=self._accept, name="exporter-accept", daemon=True)
        self.bound: Future[None] = Future()
        """Ends once the address is bound, or could not be."""

    def _accept(self) -> None:
        """Workers are started here, because only a daemon's threads are daemons."""
        try:
            self.prepare()
        except OSError as exc:
            self.bound.set_exception(exc)
            return
        self.bound.set_result(None)
        self.serve()

    def process_conn(self, conn: _Connection) -> None:
        """Pass a connection that has sent something to a worker; wait for that if it is new."""
        if conn.last_used is not None:
            super().process_conn(conn)
            return
        while len(opened := list(self.opened)) >= CONNECTIONS_MAX:
            oldest = next((c for c in opened if not c.received), opened[0])
            self.opened.pop(oldest, None)
            oldest.abort()
        self.opened[conn] = time.monotonic()
        self.put_conn(conn)

    def close_older(self, seconds: float) -> None:
        """Abort the connections that have been open for longer."""
        now_s = time.monotonic()
        for conn, since_s in list(self.opened.items()):
            if now_s - since_s > seconds:
                conn.abort()

    def error_log(self, msg: str = "", level: int = 20, traceback: bool = False) -> None:
        """Log what clients do at debug level; only what concerns the server itself is an error."""
        LOG.log(level if level >= logging.ERROR else logging.DEBUG, msg, exc_info=traceback)
        if level >= logging.ERROR:
            time.sleep(0.1)  # cheroot tries again at once, for example without free descriptors


class _Tls(Adapter):
    """TLS whose handshake is made by the worker: cheroot's own blocks the thread that accepts."""

    makefile = staticmethod(MakeFile)

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self.context = _context(settings)
        self._read_s = time.monotonic()

    def renew(self) -> None:
        """Read the files again, as they may have been renewed; if that fails, log it."""
        if time.monotonic() - self._read_s < RENEWAL_S:
            return
        self._read_s = time.monotonic()
        try:
            self.context = _context(self._settings)
        except ConfigInvalid as exc:
            LOG.error("%s; the previous certificate stays in use", exc)

    def bind(self, sock: socket.socket) -> socket.socket:
        """The listening socket, as it is."""
        return sock

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        """A connection, without a handshake yet."""
        try:
            wrapped = self.context.wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
        except OSError as exc:
            raise FatalSSLAlert(*exc.args) from exc
        return wrapped, self.get_environ()

    def get_environ(self) -> dict[str, str]:
        """What requests say about TLS."""
        return {"wsgi.url_scheme": "https"}


def _context(settings: WebSettings) -> ssl.SSLContext:
    """Certificate and key; with ``client_ca_file``, clients need a certificate that it signed."""
    options = ("cert_file", "key_file", "client_ca_file")
    try:
        if not settings.cert_file or not settings.key_file:
            raise ValueError("cert_file and key_file have to be set together")
        check_private(settings.key_file)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.cert_file, settings.key_file, password="")
        if settings.client_ca_file:
            context.load_verify_locations(settings.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as exc:
        values = ", ".join(f"{name} = {getattr(settings, name)}" for name in options)
        raise ConfigInvalid(
            f"[exporter] {values} cannot be used: {exc}; correct these, or remove all three to "
            "serve without TLS"
        ) from exc
    return context
