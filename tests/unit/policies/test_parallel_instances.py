# SPDX-License-Identifier: Apache-2.0
"""The vCPUs of a parallel instance have a faster core type together, or none of them has it."""

import pytest

from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.placing.assignment import assign
from amp_nova.policies.placing.core_shares import shared_capacity
from tests.unit.lab.builders import topology


def on_fast(host, claims, before="", thresholds=None, **known):
    """vCPUs on fast cores, as ``p0 a0``: instances p and q are parallel, others are not.

    ``before``: those that were there; ``claims``: of each vCPU of an instance.
    """
    fast, slow = (frozenset(host.pcpus_of(name)) for name in ("fast", "slow"))
    vcpus = tuple(
        VcpuView(
            (name, i),
            fast if f"{name}{i}" in before.split() else slow,
            fast | slow,
            demand_ratio=demand,
            utilization_ratio=demand,
            parallel=name in "pq",
        )
        for name, of_each in claims.items()
        for i, demand in enumerate(known.get(name, [1.0] * len(of_each)))
    )
    view = HostView(host, vcpus, dict.fromkeys(fast | slow, 1.0))
    claim = {v.key: (claims[v.key[0]][v.key[1]],) * 2 for v in vcpus}
    held = {v.key: (thresholds or {}).get(v.key[0], 0.0) for v in vcpus}
    places = assign(view, shared_capacity(view), claim, held)
    return " ".join(sorted(f"{n}{i}" for (n, i), pcpus in places.items() if fast & pcpus))


TWO = topology(fast=2, slow=4)


@pytest.mark.parametrize(
    ("claims", "there"),
    [
        ({"p": [3, 0], "a": [2], "b": [1], "c": [0], "d": [0]}, "a0 b0"),  # its mean is 1.5
        ({"p": [3, 2], "a": [2], "b": [1], "c": [0], "d": [0]}, "p0 p1"),
        ({"p": [8, 8, 8], "a": [2], "b": [1], "c": [0]}, "a0 b0"),  # too large
        ({"p": [8, 8], "a": [9], "b": [1], "c": [0], "d": [0]}, "a0 b0"),  # b takes what is left
    ],
)
def test_all_or_none(claims, there):
    assert on_fast(TWO, claims) == there


def test_a_part_takes_what_nobody_else_can():
    """Better than an idle core; and those that are there already stay."""
    assert on_fast(TWO, {"p": [1, 1, 1], "q": [2, 2, 2]}, before="p2") == "p2 q0"
    assert on_fast(TWO, {"p": [1, 1, 1], "q": [2, 2, 2]}, before="p1 p2") == "p1 p2"
    assert on_fast(TWO, {"p": [1, 1, 1], "a": [0], "b": [0], "q": [2]}, before="p1 p2") == "a0 q0"


def test_it_keeps_the_cores_for_as_long_as_all_its_thresholds_say():
    """Together its vCPUs advance it by twice as much a second as one of them."""
    claims = {"p": [1, 1], "a": [3.5], "b": [0], "c": [0], "d": [0]}

    assert on_fast(TWO, claims, before="p0 p1", thresholds={"p": 1.0}) == "a0 b0"
    assert on_fast(TWO, claims, before="p0 p1", thresholds={"p": 1.5}) == "p0 p1"


@pytest.mark.parametrize(("demand", "there"), [(0.2, "a0 b0 p0 p1"), (0.5, "a0 b0 c0")])
def test_time_to_spare_on_fast_cores_is_for_all_of_it(demand, there):
    """Slow cores are crowded by c; a and b leave 0.8 of two fast ones, enough for one of p."""
    claims = {"a": [2], "b": [2], "p": [1, 1], "c": [0, 0]}
    known = {"a": [0.6], "b": [0.6], "p": [demand, demand + 0.3], "c": [0.8, 0.4]}

    assert on_fast(topology(fast=2, slow=2), claims, before="a0 b0", **known) == there


@pytest.mark.parametrize(("demands", "there"), [([0.3, 0.3], True), ([0.3, 1.0], False)])
def test_it_sleeps_if_all_its_vcpus_do(demands, there):
    """Five vCPUs that sleep on four cores may use every type; one waiting at a barrier may not."""
    claims = {"a": [2], "b": [2], "c": [1], "p": [0, 0]}
    known = {"a": [0.2], "b": [0.2], "c": [0.2], "p": demands}

    found = on_fast(topology(fast=2, slow=2), claims, before="a0 b0", **known).split()

    assert {"a0", "b0", "c0"} <= set(found)
    assert ("p0" in found) == ("p1" in found) == there
