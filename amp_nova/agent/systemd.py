"""Reports the agent's state to systemd (sd_notify(3)); does nothing without systemd."""

import logging
import os
import socket
from collections.abc import Mapping

LOG = logging.getLogger(__name__)


class Systemd:
    """The notification socket, if the process was started by a unit with ``Type=notify``."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._ready = False

    def report(self, status: str, *, alive: bool) -> None:
        """Report the status and that the agent has started; feed the watchdog if ``alive``."""
        lines = [f"STATUS={' '.join(status.split())}"]
        lines += [] if self._ready else ["READY=1"]
        lines += ["WATCHDOG=1"] if alive else []
        self._ready = True
        self._send("\n".join(lines))

    def stopping(self) -> None:
        """Report that the agent ends on purpose."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as conn:
                conn.setblocking(False)  # a systemd that hangs must not hold up a cycle
                conn.sendto(text.encode(), self._address)
        except OSError as exc:
            LOG.debug("systemd could not be notified of '%s': %s", text, exc)
