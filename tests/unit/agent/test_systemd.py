# SPDX-License-Identifier: Apache-2.0
"""What systemd is told, over a real notification socket."""

import contextlib
import os
import socket

import pytest

from amp_nova.agent.service import Systemd


class Listener:
    """systemd's end of the notification socket."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(address)

    def all(self):
        """Every message so far."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self.socket.recv(65536).decode().splitlines())
        return found


@pytest.mark.parametrize("abstract", [False, True])
def test_readiness_is_told_once_and_the_watchdog_is_fed_while_well(tmp_path, abstract):
    """The status is one line; the address of an abstract socket begins with @."""
    name = f"amp-nova-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    listener = Listener("\0" + name if abstract else name)
    systemd = Systemd({"NOTIFY_SOCKET": "@" + name if abstract else name})

    systemd.report("2\ninstances", alive=True)
    systemd.report("waiting", alive=False)
    systemd.stopping()

    assert listener.all() == [
        ["STATUS=2 instances", "READY=1", "WATCHDOG=1"],
        ["STATUS=waiting"],
        ["STOPPING=1"],
    ]
    listener.socket.close()


@pytest.mark.parametrize("address", ["", "/no/such/socket", "x" * 5000, "@"])
def test_a_systemd_that_does_not_answer_does_no_harm(address):
    """Nor does a missing one."""
    Systemd({"NOTIFY_SOCKET": address}).report("here", alive=True)


def test_a_full_socket_does_not_block(tmp_path):
    """systemd hangs: messages are lost, the agent continues."""
    found = Listener(str(tmp_path / "full"))
    systemd = Systemd({"NOTIFY_SOCKET": str(tmp_path / "full")})

    for _ in range(1000):
        systemd.report("here", alive=True)
    found.socket.close()
