# SPDX-License-Identifier: Apache-2.0
"""The agent's control socket: one question and one answer per connection, each one line of JSON.

It is read-only: commands that change something use files that outlive the agent (``pause``).
"""

import json
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amp_nova.exceptions import AmpError, ConfigInvalid

LOG = logging.getLogger(__name__)
Answer = Callable[[dict[str, Any]], dict[str, Any]]
_TIMEOUT_S = 5.0
_QUESTION_BYTES = 4096


def path(state_path: Path) -> Path:
    """The path of the socket."""
    return state_path / "agent.sock"


class Control:
    """Answers questions about the last cycle, each in its own thread."""

    def __init__(self, state_path: Path, answer: Answer) -> None:
        class Handler(socketserver.StreamRequestHandler):
            timeout = _TIMEOUT_S

            def handle(self) -> None:
                reply = _reply(self.rfile.readline(_QUESTION_BYTES), answer)
                self.wfile.write(json.dumps(reply).encode() + b"\n")

        class SocketServer(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

            def handle_error(self, _request: object, _address: object) -> None:
                # A client that does not wait for the answer is not worth a warning.
                LOG.debug("a request was not answered", exc_info=True)

        where = path(state_path)
        try:
            where.unlink(missing_ok=True)
            self._server = SocketServer(str(where), Handler)
            os.chmod(where, 0o600)
        except OSError as exc:
            raise ConfigInvalid(
                f"the control socket {where} cannot be created ({exc.strerror or exc}): set "
                "[agent] state_path to a writable folder"
            ) from exc
        self._path = where
        serve = self._server.serve_forever
        threading.Thread(target=serve, name="control", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


def _reply(line: bytes, answer: Answer) -> dict[str, Any]:
    try:
        question = json.loads(line)
    except (ValueError, RecursionError):
        return {"error": f"the request is not JSON of at most {_QUESTION_BYTES} bytes"}
    if not isinstance(question, dict):
        return {"error": "the request is not a JSON object"}
    try:
        return answer(question)
    except AmpError as exc:
        return {"error": str(exc)}
    except Exception:  # the last resort: one bad answer must not stop the socket
        LOG.exception("a request failed")
        return {"error": "the agent failed to answer: see its log"}


def query(state_path: Path, question: dict[str, Any]) -> dict[str, Any] | None:
    """Ask the agent; ``None`` if none is running.

    Raises ``AmpError`` if the agent gives no usable answer.
    """
    where = path(state_path)
    line = json.dumps(question).encode() + b"\n"
    if len(line) > _QUESTION_BYTES:
        raise AmpError("the request is too long: name an instance by its UUID")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as conn:
        conn.settimeout(_TIMEOUT_S)
        try:
            conn.connect(str(where))
            conn.sendall(line)
            with conn.makefile("rb") as stream:
                reply = stream.readline()
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as exc:
            hint = "; run this as root" if isinstance(exc, PermissionError) else ""
            raise AmpError(
                f"the agent at {where} does not answer: {exc.strerror or exc}{hint}"
            ) from exc
    try:
        answer = json.loads(reply)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise AmpError(f"the agent at {where} returned an invalid reply: see its log")
    return answer
