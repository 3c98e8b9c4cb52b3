# SPDX-License-Identifier: Apache-2.0
"""Bookings have precedence over best effort by CPU weights, which starve nobody."""

import pytest

from amp_nova.agent.loop import Loop
from amp_nova.plugins import load_policy
from tests.support.hosts import FakeHost

HALF = {"pref_core": "0.5"}


def host_with(**specs):
    """A host with one domain per keyword argument, each with these extra specs."""
    host = FakeHost()
    for name, spec in specs.items():
        host.add(name, spec)
    return host


def weights(host):
    return {name: domain.cpu_weight for name, domain in host.domains.items()}


@pytest.mark.parametrize(
    ("specs", "before", "after"),
    [
        ({"one": None, "two": None}, {"two": 300}, {"one": 100, "two": 300}),
        ({"one": None, "two": None}, {"one": 5, "two": 500}, {"one": 100, "two": 100}),
        ({"vm": HALF, "free": None}, {"vm": 5, "free": 300}, {"vm": 500, "free": 5}),
        ({"vm": HALF, "weighted": None}, {"weighted": None}, {"vm": 500, "weighted": None}),
    ],
    ids=[
        "no booking",
        "no booking any more",
        "others",
        "has shares of its own",
    ],
)
def test_weights_depend_on_bookings_alone(specs, before, after):
    """Any earlier weight is replaced beside bookings, and without any those of an agent before."""
    host = host_with(**specs)
    for name, weight in before.items():
        host.domains[name].cpu_weight = weight

    Loop(host, host).cycle()

    assert weights(host) == after


def test_dedicated_and_paused_instances_are_left_alone():
    """Nova gave them pCPUs that no booking may use; one that shares a single pCPU competes.

    Best effort has a hundredth of a booking's for each vCPU, and an instance with one booked vCPU
    that of a booking for all of them. Another cycle writes nothing.
    """
    host = FakeHost()
    host.add("booked", HALF, allowed={0, 1})
    host.add("mixed", {"pref_core.0": "0.5"}, vcpus=2, allowed={0, 1})
    host.add("large", vcpus=4, allowed={0, 1})
    host.add("paused", allowed={0, 1})
    host.paused = {"paused": "paused by an operator"}
    host.add("dedicated", vcpus=2, allowed={2})
    host.add("beside", vcpus=2, allowed={2})
    host.vcpu("beside", 1).allowed = host.vcpu("beside", 1).pcpus = frozenset({1})

    loop = Loop(host, host)
    writes = loop.cycle().totals.writes

    of_bookings, others = {"booked": 500, "mixed": 1000}, {"paused": 100, "dedicated": 100}
    assert weights(host) == {**of_bookings, **others, "large": 20, "beside": 10}
    host.wait()
    assert loop.cycle().totals.writes == writes


def test_the_default_that_systemd_writes_is_repaired_and_nobodys_change():
    """With every daemon-reload; another value is somebody's, and is repaired a few times only."""
    host = host_with(booked=HALF, free=None)
    loop = Loop(host, host)
    loop.cycle()
    for _ in range(5):
        host.domains["free"].cpu_weight = host.domains["booked"].cpu_weight = 100
        host.wait()
        drift = loop.cycle().totals.drift
        assert weights(host) == {"booked": 500, "free": 5}
        assert drift.get("weight", 0) == 0

    for _ in range(5):
        host.domains["free"].cpu_weight = 700
        host.wait()
        drift = loop.cycle().totals.drift

    assert drift["weight"] == 4
    assert weights(host)["free"] == 700


def test_where_a_policy_places_a_weight_follows_the_vcpus():
    """Policies count in vCPUs and the kernel in instances; those pinned by Nova are left alone."""
    host = host_with(one=None)
    host.add("four", vcpus=4)
    host.add("dedicated", vcpus=2, allowed=frozenset({0}))
    loop = Loop(host, host, policy=load_policy("amp-fair"))

    loop.cycle()
    placed = weights(host)
    Loop(host, host).cycle()

    assert placed == {"one": 100, "four": 400, "dedicated": 100}
    assert weights(host) == {"one": 100, "four": 100, "dedicated": 100}
