"""What systemd is told, over a real notification socket."""

import contextlib
import os
import socket

import pytest

from amp_nova.agent.systemd import Systemd


class Listener:
    """systemd's end of the notification socket."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(10)

    def next(self):
        """The next message, as a list of lines."""
        return self.socket.recv(65536).decode().splitlines()

    def all(self):
        """Every message so far."""
        found = []
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self.socket.recv(65536).decode().splitlines())
        return found


@pytest.fixture
def listener(tmp_path):
    found = Listener(str(tmp_path / "notify"))
    yield found
    found.socket.close()


def environ(address, **more):
    return {"NOTIFY_SOCKET": address, **more}


def test_readiness_is_told_once_and_the_watchdog_is_fed_while_well(listener, tmp_path):
    """The status is one line."""
    systemd = Systemd(environ(str(tmp_path / "notify")))

    systemd.report("2\ninstances", alive=True)
    systemd.report("waiting", alive=False)
    systemd.stopping()

    assert listener.next() == ["STATUS=2 instances", "READY=1", "WATCHDOG=1"]
    assert listener.next() == ["STATUS=waiting"]
    assert listener.next() == ["STOPPING=1"]


def test_an_abstract_socket_is_understood():
    """Its address begins with @."""
    name = f"amp-nova-test-{os.getpid()}"
    found = Listener("\0" + name)

    Systemd(environ("@" + name)).stopping()

    assert found.next() == ["STOPPING=1"]
    found.socket.close()


@pytest.mark.parametrize(
    ("watchdog", "cycle_s", "told"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 1.0, []),
        ({"WATCHDOG_USEC": "60000000"}, 3600.0, [["WATCHDOG_USEC=10830000000"]]),
        ({"WATCHDOG_USEC": ""}, 3600.0, []),
        ({"WATCHDOG_USEC": "9" * 5000}, 3600.0, []),
        ({"WATCHDOG_USEC": "-1"}, 3600.0, []),
        ({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, 60.0, []),  # inherited, not ours
    ],
)
def test_the_watchdog_allows_for_long_cycles(listener, tmp_path, watchdog, cycle_s, told):
    """A cycle an hour is not a hung agent; the watchdog of another process is left alone."""
    Systemd(environ(str(tmp_path / "notify"), **watchdog)).begin(cycle_s)

    assert listener.all() == told


@pytest.mark.parametrize("address", ["", "/no/such/socket", "x" * 5000, "@"])
def test_a_systemd_that_does_not_answer_does_no_harm(address):
    """Nor does a missing one."""
    Systemd(environ(address)).report("here", alive=True)


def test_a_full_socket_does_not_block(tmp_path):
    """systemd hangs: messages are lost, the agent continues."""
    found = Listener(str(tmp_path / "full"))
    systemd = Systemd(environ(str(tmp_path / "full")))

    for _ in range(5000):
        systemd.report("here", alive=True)
    found.socket.close()
