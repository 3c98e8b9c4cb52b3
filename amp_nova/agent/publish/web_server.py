# SPDX-License-Identifier: Apache-2.0
"""The agent's pages over HTTP: who may read them, TLS, and compression."""

import functools
import gzip
import ipaddress
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from cheroot.errors import FatalSSLAlert
from cheroot.makefile import MakeFile
from cheroot.ssl import Adapter

from amp_nova.exceptions import ConfigInvalid
from amp_nova.http_server import HttpServer
from amp_nova.private_files import check_private

LOG = logging.getLogger(__name__)
RENEWAL_S = 60.0
"""How often certificates are read again."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may load besides a page: nothing (Content-Security-Policy)."""
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

    def bind(self) -> HttpServer:
        """A server that accepts connections, in threads that end with the process.

        Raises ``ConfigInvalid`` if the address cannot be bound.
        """
        own = (socket.gethostname(), socket.getfqdn(), self._settings.address, "localhost")
        names = (*own, own[0].partition(".")[0], *self._settings.allowed_hosts)
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        address, port = self._settings.address, self._settings.port
        try:
            return HttpServer((address, port), self._answer, self._tls)
        except OSError as exc:
            reason = str(exc).rpartition("] ")[2].rstrip(")")  # cheroot wraps it in a text
            raise ConfigInvalid(
                f"cannot serve metrics on {address}:{port} ({reason}): set another [exporter] "
                "address or port"
            ) from exc

    def run(self, server: HttpServer, beat: Callable[[], bool]) -> None:
        """Serve and renew certificates until ``beat`` returns ``False``, then stop.

        ``beat`` is called about every second.
        """

        def renewed() -> bool:
            if self._tls:
                self._tls.renew()
            return beat()

        server.run(renewed)

    def _answer(
        self, request: dict[str, Any], start: Callable[[str, list[tuple[str, str]]], object]
    ) -> Iterable[bytes]:
        """The WSGI application."""
        page = self._page(request)
        zipped = page.gzipped and _accepts_gzip(request.get("HTTP_ACCEPT_ENCODING", ""))
        body = _unzipped(page.body) if page.gzipped and not zipped else page.body
        fields = {
            "Content-Type": page.content_type,
            **page.headers,
            **({"Vary": "Accept-Encoding"} if page.gzipped else {}),
            **({"Content-Encoding": "gzip"} if zipped else {}),
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
        host = request.get("HTTP_HOST")  # health checks send none or an empty one, browsers do not
        if host and not _is_allowed(host, self._names):
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


@functools.lru_cache(maxsize=1)
def _unzipped(body: bytes) -> bytes:
    """The text of a page, once for all clients that do not accept gzip."""
    return gzip.decompress(body)


def _accepts_gzip(field: str) -> bool:
    """Whether an Accept-Encoding field names gzip with another weight than 0 (RFC 9110, 12.5.3)."""
    codings = dict("".join(each.split()).partition(";")[::2] for each in field.lower().split(","))
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
