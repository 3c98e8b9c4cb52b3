"""Which vCPUs are to be charged at the moment: by cycles of the loop over a fake host."""

import pytest

from amp_nova.agent.loop import Loop, Settings
from tests import hosts


@pytest.fixture
def host():
    """One that always wants more than its little, one that has enough of it, and a big one."""
    host = hosts.FakeHost()
    host.add("hungry", {"pref_core": "0.05"})
    host.add("content", {"pref_core": "0.06"}, wants=0.02)
    host.add("big", {"pref_core": "0.5"})
    host.add("free")
    return host


def charged(host, most=9, cycles=4):
    """What the last of some cycles says."""
    loop = Loop(host, host, Settings(exact_limits_max=most))
    for _ in range(cycles):
        found = loop.act().small
        host.wait()
    return list(found)


def test_small_limits_that_bind(host):
    """Neither those who have enough, nor large ones, nor who has no booking."""
    assert charged(host) == [("hungry", 0)]


def test_operators_bound_how_many(host):
    """The smallest first; none at 0."""
    host.add("hungrier", {"pref_core": "0.03"})

    assert charged(host, most=1) == [("hungrier", 0)]
    assert charged(host, most=0) == []


def test_one_that_went_is_forgotten(host):
    """Nothing is charged of an instance that is no longer here."""
    loop = Loop(host, host, Settings(exact_limits_max=9))
    for _ in range(4):
        loop.act()
        host.wait()
    del host.domains["hungry"]

    assert list(loop.act().small) == []
