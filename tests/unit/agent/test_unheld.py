"""Nobody is throttled who has just been taken in hand."""

import contextlib

from amp_nova.agent.unheld import Unheld
from amp_nova.exceptions import ConfigInvalid
from amp_nova.model.allocation import Failure
from amp_nova.model.bandwidth import Bandwidth

LIMITS = {("paused", 0): Bandwidth(1_000, 20_000), ("free", 0): Bandwidth(2_000, 20_000)}


class Port:
    """A FAKE FastPort that remembers."""

    def __init__(self):
        self.limits = {}

    def throttle(self, limits):
        self.limits.update(limits)
        return {("free", 1): Failure("refused", "no")} if ("free", 1) in limits else {}


def test_a_held_instance_keeps_its_limits():
    """The others are written."""
    port = Port()
    failures = Unheld(port, lambda: {"paused": "paused"}, contextlib.nullcontext).throttle(LIMITS)

    assert set(port.limits) == {("free", 0)}
    assert failures == {("paused", 0): Failure("held", "paused")}


def test_nothing_is_written_while_another_command_changes_limits():
    """It is tried again."""

    @contextlib.contextmanager
    def taken():
        raise ConfigInvalid("another process")
        yield

    port = Port()
    failures = Unheld(port, dict, taken).throttle(LIMITS)

    assert port.limits == {}
    assert {f.reason for f in failures.values()} == {"held"}
