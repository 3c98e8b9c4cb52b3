"""The agent's control socket: one question, one answer, both JSON on one line.

Read-only: what changes something goes through files that outlive the agent (``holds``).
"""

import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amp_nova.exceptions import AmpError, ConfigInvalid

Answer = Callable[[dict[str, Any]], dict[str, Any]]
_TIMEOUT_S = 5.0
_QUESTION_BYTES = 4096


def path(state_path: Path) -> Path:
    """Where the socket is."""
    return state_path / "agent.sock"


class Control:
    """Answers questions about the last cycle, each in a thread of its own."""

    def __init__(self, state_path: Path, answer: Answer) -> None:
        class Handler(socketserver.StreamRequestHandler):
            timeout = _TIMEOUT_S

            def handle(self) -> None:
                try:
                    question = json.loads(self.rfile.readline(_QUESTION_BYTES))
                    reply = answer(question if isinstance(question, dict) else {})
                except ValueError:
                    reply = {"error": "the question is not JSON"}
                self.wfile.write(json.dumps(reply).encode() + b"\n")

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

        where = path(state_path)
        try:
            where.unlink(missing_ok=True)
            self._server = Server(str(where), Handler)
            os.chmod(where, 0o600)
        except OSError as exc:
            raise ConfigInvalid(
                f"the control socket {where} cannot be made ({exc.strerror}): set [agent] "
                "state_path to a folder that can be written"
            ) from exc
        self._path = where
        threading.Thread(target=self._server.serve_forever, name="control", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


def ask(state_path: Path, question: dict[str, Any]) -> dict[str, Any] | None:
    """Ask the agent; ``None`` when none runs here."""
    where = path(state_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as conn:
        conn.settimeout(_TIMEOUT_S)
        try:
            conn.connect(str(where))
            conn.sendall(json.dumps(question).encode() + b"\n")
            with conn.makefile("rb") as stream:
                reply = stream.readline()
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as exc:
            raise AmpError(f"the agent at {where} does not answer: {exc.strerror or exc}") from exc
    if not reply:
        raise AmpError(f"the agent at {where} gave no answer: see its log")
    answer: dict[str, Any] = json.loads(reply)
    return answer
