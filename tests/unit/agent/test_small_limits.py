"""Which vCPUs are to be charged at the moment: by cycles of the loop over a fake host."""

import pytest

from amp_nova.agent.loop import Loop, Settings
from amp_nova.agent.small_limits import SmallLimits
from amp_nova.core.booking import VcpuBooking
from amp_nova.core.capacity import Bandwidth
from amp_nova.core.contract import Promise
from amp_nova.core.plan import Grant
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


class Fast:
    """A FAKE fast loop that governs what it is told to."""

    def __init__(self, **ips):
        self.ips = {(name, 0): each for name, each in ips.items()}

    def rations(self):
        return self.ips


def rationed(host, shares, fast, most_ips, cycles=4, limits=None):
    """What is to be given portions after some cycles in which these limits held."""
    limits = limits or SmallLimits(9, most_ips)
    for _ in range(cycles):
        promises = {}
        for name, share in shares.items():
            host.vcpu(name).bandwidth = Bandwidth(round(share * 100_000), 100_000)
            grant = Grant((name, 0), frozenset({0}), None, limits=True, governed=True)
            promises[name, 0] = Promise(VcpuBooking(0, ips=1e9), grant)
        found = limits.binding(host.observe(), promises, fast)
        host.wait()
    return found


def test_small_bookings_of_ips_are_given_portions():
    """Up to six tenths of a core, the smallest first; not those that have enough."""
    host = hosts.FakeHost()
    for name, wants in {"little": 1.0, "half": 1.0, "most": 1.0, "content": 0.02}.items():
        host.add(name, wants=wants)
    shares = {"little": 0.05, "half": 0.5, "most": 0.7, "content": 0.1}
    fast = Fast(little=1e8, half=1e9, most=1.2e9, content=2e8)

    assert rationed(host, shares, fast, 9) == {("little", 0): 1e8, ("half", 0): 1e9}
    assert rationed(host, shares, fast, 1) == {("little", 0): 1e8}
    assert rationed(host, shares, fast, 0) == {}
    assert rationed(host, shares, Fast(), 9) == {}  # nobody who may be


def test_portions_go_on_when_a_vcpu_becomes_a_little_slower():
    """It is not tossed to and fro; one that needs much more of its core has a limit again."""
    host, fast, limits = hosts.FakeHost(), Fast(vm=1e9), SmallLimits(9, 9)
    host.add("vm")

    assert rationed(host, {"vm": 0.55}, fast, 9, limits=limits)
    assert rationed(host, {"vm": 0.7}, fast, 9, limits=limits)
    assert not rationed(host, {"vm": 0.8}, fast, 9, limits=limits)
    assert not rationed(host, {"vm": 0.7}, fast, 9, limits=limits)
