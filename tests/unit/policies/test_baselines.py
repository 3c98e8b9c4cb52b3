# SPDX-License-Identifier: Apache-2.0
"""The baselines of kwon2011: ``credit`` places vCPUs at random, ``pinned`` only once."""

from collections import Counter

import pytest

from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.none import NonePolicy
from amp_nova_lab.policies.credit import CreditPolicy
from amp_nova_lab.policies.pinned import PinnedPolicy


def view(vcpus, fast=1, slow=1, interval=0, seed=0, booked=()):
    """A host whose fast cores come first; ``vcpus``: a number, or fields of each VcpuView."""
    types = ["fast"] * fast + ["slow"] * slow
    pcpus = tuple(PCpu(i, name) for i, name in enumerate(types))
    topology = Topology((CoreType("slow", 1.0), CoreType("fast", 2.0)), pcpus, "slow", "test")
    everywhere = frozenset(range(len(types)))
    special = [{}] * vcpus if isinstance(vcpus, int) else vcpus
    views = tuple(
        VcpuView(**{"key": (f"vm{i}", 0), "pcpus": everywhere, "allowed": everywhere, **extra})
        for i, extra in enumerate(special)
    )
    free = {i: 1.0 - dict(booked).get(i, 0.0) for i in everywhere}
    return HostView(topology, views, free, interval, seed)


def places(policy, given):
    """The pCPU of every vCPU by position; ``None``: not placed."""
    decided = policy.decide(given)
    return [next(iter(decided[v.key])) if v.key in decided else None for v in given.vcpus]


def test_none_touches_nothing():
    """The policy ``none`` places no vCPU."""
    assert NonePolicy().decide(view(3)) == {}


def test_credit_fills_the_pcpus_evenly():
    """With as many vCPUs as pCPUs each gets one, with twice as many each pCPU gets two."""
    for interval in range(20):
        assert sorted(places(CreditPolicy(), view(4, 2, 2, interval))) == [0, 1, 2, 3]
        assert set(Counter(places(CreditPolicy(), view(8, 2, 2, interval))).values()) == {2}


def test_credit_gives_every_vcpu_the_same_chance():
    """Over many intervals every vCPU is on each pCPU about equally often."""
    seen = [Counter() for _ in range(3)]
    for interval in range(3000):
        for position, pcpu in enumerate(places(CreditPolicy(), view(3, 1, 2, interval))):
            seen[position][pcpu] += 1

    assert all(900 < count < 1100 for counter in seen for count in counter.values())


def test_credit_counts_bookings_and_demand():
    """Load counts what is booked on a pCPU and what a vCPU wants."""
    idle = {"demand_ratio": 0.0}
    for interval in range(20):
        assert places(CreditPolicy(), view(1, interval=interval, booked=[(1, 0.5)])) == [0]
        found = places(CreditPolicy(), view([{}, {}, idle, idle], interval=interval))
        assert sorted(found[:2]) == [0, 1]


@pytest.mark.parametrize("policy", [CreditPolicy(), PinnedPolicy()], ids=lambda p: p.name)
def test_no_vcpu_is_placed_where_it_may_not_run(policy):
    """Allowed pCPUs are respected; a vCPU without any is left alone."""
    only = [{"allowed": frozenset({1})}, {"allowed": frozenset({1})}, {"allowed": frozenset()}]

    assert places(policy, view(only)) == [1, 1, None]


PINNED, ON_SLOW = {"pcpus": frozenset({0})}, {"last_pcpu": 2}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (view(3, 1, 2), [0, 1, 2]),
        (view(7, 1, 2), [0, 1, 2, 0, 1, 2, 0]),
        # One that is on one pCPU stays there, and a new one goes to a free pCPU.
        (view([PINNED, {}], 1, 1), [None, 1]),
        (view([{}, PINNED], 1, 1), [1, None]),
        # Those that started on a core type are pinned to one of its pCPUs, and choose first.
        (view([{}, {}, ON_SLOW, ON_SLOW], 2, 2), [0, 1, 2, 3]),
        (view([ON_SLOW] * 3, 2, 2), [2, 3, 2]),
        # The pCPU that it ran on has gone offline.
        (view([{"last_pcpu": 9}], 2, 2), [0]),
    ],
)
def test_pinned_maps_one_to_one_and_starts_over(given, expected):
    """vCPU i goes to pCPU i, unless it was somewhere already."""
    assert places(PinnedPolicy(), given) == expected
