"""A small HTTP server: few connections, each short, so that no client can block the agent.

One thread serves all clients. When ``CONNECTIONS_MAX`` are open, the oldest connection that has not
sent its request is closed in favour of the next, so that idle connections cannot block a scrape.
"""

import asyncio
import gzip
import io
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus

from amp_nova.agent.publish import web_access
from amp_nova.exceptions import ConfigInvalid

LOG = logging.getLogger(__name__)
CONNECTIONS_MAX = 16
CONNECTION_S = 5.0
REQUEST_BYTES_MAX = 16384
REFUSED_PAUSE_S = 0.5
"""Pause after a wrong password, which limits guesses and the CPU time that hashing them costs."""
BEAT_S = 1.0
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


Route = Callable[[Mapping[str, str]], Page]
"""Returns the page of one path, given the request's headers (lower-case names)."""


def bind(address: str, port: int) -> socket.socket:
    """A listening socket, on any free port if ``port`` is 0.

    Raises:
        ConfigInvalid: the address cannot be bound.
    """
    listening = None
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, where = found[0]
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(_BACKLOG)
        return listening
    except OSError as exc:
        if listening is not None:
            listening.close()
        raise ConfigInvalid(
            f"cannot serve metrics on {address}:{port} ({exc.strerror}): set another "
            "[exporter] address or port"
        ) from exc


class WebServer:
    """Serves ``routes``, by path, to those whom the web configuration file permits."""

    def __init__(self, routes: Mapping[str, Route], web_config_file: str | None = None) -> None:
        """Read the file; raises ``ConfigInvalid`` if it cannot be used."""
        self._routes = routes
        self._path = web_config_file
        self._access = web_access.load(web_config_file)
        self._known: set[bytes] = set()
        """Digests of passwords that were correct."""
        self._guess = asyncio.Lock()
        self._open: dict[asyncio.Task[None], bool] = {}
        """Connections, oldest first, and whether each has sent its request."""
        self._broken = False

    @property
    def scheme(self) -> str:
        """``http`` or ``https``."""
        return "https" if self._access.tls else "http"

    def run(self, listening: socket.socket, beat: Callable[[], bool]) -> None:
        """Serve until ``beat``, which is called about every second, returns ``False``."""
        with listening:
            listening.setblocking(False)
            asyncio.run(self._run(listening, beat))

    async def _run(self, listening: socket.socket, beat: Callable[[], bool]) -> None:
        accepting = asyncio.create_task(self._accept(listening))
        while beat() and not accepting.done():
            await asyncio.wait([accepting], timeout=BEAT_S)
        accepting.cancel()
        for task in self._open:
            task.cancel()
        await asyncio.gather(accepting, *self._open, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError as exc:  # no descriptors left, or the client has gone
                LOG.debug("a connection was not accepted: %s", exc)
                await asyncio.sleep(0.1)
                continue
            while len(self._open) >= CONNECTIONS_MAX:
                waiting = (task for task, asked in self._open.items() if not asked)
                oldest = next(waiting, next(iter(self._open)))
                del self._open[oldest]
                oldest.cancel()
                await asyncio.sleep(0)  # let it close its socket
            task = asyncio.create_task(self._connection(client))
            self._open[task] = False
            task.add_done_callback(partial(self._ended, client))

    def _ended(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        client.close()  # nobody else does if the task was cancelled before it began

    async def _connection(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=REQUEST_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport: asyncio.Transport | None = None
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs in one
        try:
            async with asyncio.timeout(CONNECTION_S):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol, client, ssl=self._current().tls
                )
                writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                head = await reader.readuntil(b"\r\n\r\n")
                self._open[task] = True
                for part in await self._answer(head):
                    writer.write(part)
                    await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (
            OSError,
            TimeoutError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ) as exc:
            LOG.debug("a client was not answered: %r", exc)
        except Exception:
            LOG.exception("a client was not answered")
        finally:
            if transport is not None:
                transport.abort()

    def _current(self) -> web_access.Access:
        """The access as configured now; the last valid one if the file is broken."""
        try:
            self._access = web_access.renewed(self._path, self._access)
            self._broken = False
        except ConfigInvalid as exc:
            if not self._broken:
                LOG.error("%s; its previous content stays in force", exc)
            self._broken = True
        return self._access

    async def _answer(self, head: bytes) -> Iterator[bytes]:
        line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, _ = (*line.split(" "), "", "", "")[:3]
        pairs = (text.partition(":") for text in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        page = await self._page(method, target.partition("?")[0], headers)
        unzip = page.gzipped and "gzip" not in headers.get("accept-encoding", "").lower()
        return _rendered(page, with_body=method != "HEAD", unzip=unzip)

    async def _page(self, method: str, path: str, headers: Mapping[str, str]) -> Page:
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", Allow="GET, HEAD")
        if not await self._allowed(headers.get("authorization", "")):
            return _plain(HTTPStatus.UNAUTHORIZED, "unauthorized", **{"WWW-Authenticate": "Basic"})
        route = self._routes.get(path)
        if route is None:
            return _plain(HTTPStatus.NOT_FOUND, f"not here; see {', '.join(sorted(self._routes))}")
        try:
            return route(headers)
        except Exception:  # the last resort: a defect of one page is its client's alone
            LOG.exception("%s cannot be shown", path)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR, "it cannot be shown: see the log")

    async def _allowed(self, header: str) -> bool:
        access = self._access
        if not access.users:
            return True
        given = web_access.password(header)
        if given is None:
            return False
        digest = web_access.digest(access, *given)
        if digest in self._known:
            return True
        async with self._guess:  # one at a time: hashing takes 0.1 s of CPU time
            right = await asyncio.to_thread(web_access.matches, access, *given)
            if not right:
                await asyncio.sleep(REFUSED_PAUSE_S)
                return False
        self._known = {*(self._known if len(self._known) < len(access.users) else ()), digest}
        return True


def _plain(status: HTTPStatus, text: str, **headers: str) -> Page:
    return Page(f"{text}\n".encode(), status=status, headers=headers)


def _rendered(page: Page, *, with_body: bool, unzip: bool) -> Iterator[bytes]:
    """In parts, so that a large body that must be decompressed is never held as a whole."""
    size = len(page.body)
    if unzip:
        size = int.from_bytes(page.body[-4:], "little")  # the size before compression (RFC 1952)
    fields = {
        "Content-Type": page.content_type,
        **page.headers,
        **({"Vary": "Accept-Encoding"} if page.gzipped else {}),
        **({"Content-Encoding": "gzip"} if page.gzipped and not unzip else {}),
        "Content-Length": str(size),
        "Connection": "close",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    lines = [f"HTTP/1.1 {page.status.value} {page.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    yield "\r\n".join((*lines, "", "")).encode("latin-1")
    if with_body and unzip:
        with gzip.GzipFile(fileobj=io.BytesIO(page.body)) as file:
            while part := file.read(_PART_BYTES):
                yield part
    elif with_body:
        yield page.body
