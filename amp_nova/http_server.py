# SPDX-License-Identifier: Apache-2.0
"""cheroot's server with few connections, each short, so that no client blocks it.

When ``CONNECTIONS_MAX`` are open, the oldest that has not sent its request is closed in favour of
the next, so that idle connections cannot block others.
"""

import contextlib
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cheroot import wsgi
from cheroot.server import HTTPConnection, HTTPRequest
from cheroot.ssl import Adapter

LOG = logging.getLogger(__name__)
CONNECTIONS_MAX = 16
CONNECTION_S = 5.0
HEADER_BYTES_MAX = 16384
BEAT_S = 1.0
_BACKLOG = 1024


class _Headers(dict[bytes, bytes]):
    """Headers of a request, of which only one tells the length of the body (RFC 9112, 6.3).

    A proxy that reads another length would take a part of one request for the next.
    """

    def __setitem__(self, name: bytes, value: bytes) -> None:
        lengths = {b"Content-Length", b"Transfer-Encoding"}
        if name in lengths and not lengths.isdisjoint(self):
            raise ValueError("two headers tell the length of the body")
        if name == b"Content-Length" and not re.fullmatch(rb"[0-9]{1,18}", value):
            raise ValueError("Content-Length is not a number")
        super().__setitem__(name, value)


class _HttpRequest(HTTPRequest):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.inheaders = _Headers()

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
            super().communicate()  # type: ignore[no-untyped-call]  # cheroot's stub has no types
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
    """cheroot's server with bounds on the size of requests, and on connections.

    It listens in threads that end with the process.
    """

    ConnectionClass = _Connection
    keep_alive_conn_limit = 0
    max_request_header_size = HEADER_BYTES_MAX

    def __init__(
        self, address: tuple[str, int], app: Any, tls: Adapter | None = None, body_max: int = 16384
    ) -> None:
        """Bind the address; raises ``OSError``. ``body_max``: bytes of a request's body."""
        super().__init__(
            address,
            app,
            numthreads=CONNECTIONS_MAX,
            server_name="amp-nova",
            request_queue_size=_BACKLOG,
            timeout=CONNECTION_S,  # type: ignore[arg-type]  # a float is a timeout, too
            accepted_queue_size=CONNECTIONS_MAX,
        )
        self.max_request_body_size = body_max
        self.ssl_adapter = tls
        self.opened: dict[_Connection, float] = {}
        """Connections, oldest first, and since when they have been open."""
        self._bound: Future[None] = Future()
        self._accepting = threading.Thread(target=self._accept, name="http-accept", daemon=True)
        self._accepting.start()
        self._bound.result()

    def run(self, beat: Callable[[], bool]) -> None:
        """Watch over connections until ``beat``, which is called about every second, is false."""
        try:
            while beat() and self._accepting.is_alive():
                self._close_older(CONNECTION_S - BEAT_S)
                self._accepting.join(BEAT_S)
        finally:
            self._close_older(0.0)
            self.stop()

    def _accept(self) -> None:
        """Workers are started here, because only a daemon's threads are daemons."""
        try:
            self.prepare()
        except OSError as exc:
            self._bound.set_exception(exc)
            return
        self._bound.set_result(None)
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

    def _close_older(self, seconds: float) -> None:
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
