"""The agent's HTTP server: a WSGI application, a thread for each request."""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """A scrape is no news."""


def serve(application: Application, address: str, port: int) -> int:
    """Serve from now on, from a thread of its own; returns the port in use.

    ``start_http_server`` of prometheus_client does the same, but tells the port since 0.19 only.

    Raises:
        OSError: the address cannot be resolved or bound.
    """
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)

    class Server(socketserver.ThreadingMixIn, WSGIServer):
        daemon_threads = True
        address_family = found[0][0]

    server = Server(found[0][4][:2], _Handler)  # type: ignore[arg-type]  # host and port
    server.set_app(application)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return int(server.server_port)
