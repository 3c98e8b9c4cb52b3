# SPDX-License-Identifier: Apache-2.0
"""What the cloud gains if an instance goes to a host."""

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from amp_nova.model import cpulist
from amp_nova.policies.api import VcpuView
from amp_nova.policies.placing.core_shares import SharedCapacity, evenly
from amp_nova.profiling import speedup as speedups
from amp_nova.scheduling.host_fit import capacity_of
from amp_nova.scheduling.placement_score import (
    NewInstance,
    best_effort_demand,
    idle_worth,
    score,
)
from amp_nova.scheduling.sensitivity import (
    SENSITIVITY_MAX,
    UNKNOWN,
    hinted_sensitivity,
    profiles,
    scale_of,
    sensitivity,
    sensitivity_of,
)
from amp_nova.wire.host_report import ReportedInstance, ReportedVcpu, Speedup
from tests.support import hosts
from tests.support.host_reports import host_report, instance

ONE_EACH = hosts.topology({"slow": (1, 1.0), "fast": (1, 2.0)})


def best_effort(resource, speedup=None, vcpus=1, allowed=frozenset({0, 1}), **fields):
    """A best-effort instance, with its measured speedup if it has one."""
    found = Speedup(speedup) if speedup else None
    reported = (
        ReportedVcpu(i, cpus_allowed_list=cpulist.show(allowed), speedup=found)
        for i in range(vcpus)
    )
    return ReportedInstance(resource, tuple(reported), **fields)


def demand_of(*instances, topology=ONE_EACH):
    """The best-effort demand of a host with these instances."""
    report = host_report(*instances, topology=topology)
    free = {f.core_type.name: f.free_cores for f in capacity_of(report).free}
    return best_effort_demand(report, free)


@pytest.mark.parametrize(("speedup", "progress"), [(1.0, 1.25), (1.5, 1.375), (2.0, 1.5)])
def test_the_papers_two_instances(speedup, progress):
    """kwon2011, figure 4: mean progress of speedups 2 and e that share a fast and a slow core."""
    both = (best_effort("a", 2.0), best_effort("b", speedup))

    assert demand_of(*both).throughput / 2 == pytest.approx(progress)


BARE = hosts.topology({"slow": (1, None), "fast": (1, None)})


@pytest.mark.parametrize(
    ("hint", "topology", "speedup"),
    [
        (None, ONE_EACH, None),
        (1.7, ONE_EACH, 1.7),
        (1e15, ONE_EACH, 100.0),
        ("low", ONE_EACH, 1.1),
        ("medium", ONE_EACH, 1.5),
        ("high", ONE_EACH, 1.9),
        ("high", BARE, None),  # without coefficients only a number has a meaning
        (1.7, BARE, 1.7),
    ],
)
def test_a_hint_means_a_speedup(hint, topology, speedup):
    """A word means a part of what the hardware offers."""
    assert speedups.hinted_speedup(hint, topology) == (speedup and pytest.approx(speedup))


def test_a_booking_prefers_to_leave_fast_cores_alone():
    """One refcore on a slow core or half a fast one: the same for the tenant, not for the cloud."""
    busy = demand_of(best_effort("a", 2.0), best_effort("b", 1.2))
    booking = NewInstance(0, (1.0,))

    assert score(busy, booking, ("slow",)) > score(busy, booking, ("fast",))
    empty = demand_of()
    assert score(empty, booking, ("slow",)) > score(empty, booking, ("fast",))


def test_a_parallel_instance_scales_with_the_fast_cores():
    """Two vCPUs: with 0, 1 and 2 fast cores it speeds up step by step (kwon2011, section 4.5)."""
    types = ({"slow": (2, 1.0)}, {"slow": (1, 1.0), "fast": (1, 2.0)}, {"fast": (2, 2.0)})
    speeds = [
        score(demand_of(topology=hosts.topology(t)), NewInstance(2, sensitivity=1.0))[1]
        for t in types
    ]

    assert speeds == pytest.approx([1.0, 1.5, 2.0])


def test_sensitivity_makes_speedups_comparable_between_hosts():
    """With a coefficient of 2, a speedup of 1.5 is half of what is possible."""
    scale = scale_of(ONE_EACH)
    assert sensitivity(1.5, scale) == pytest.approx(0.5)
    assert sensitivity(0.9, scale) == 0.0
    assert sensitivity(9.0, scale) == SENSITIVITY_MAX
    assert scale_of(hosts.topology({"slow": (2, 1.0)})) is None
    assert sensitivity(1.5, None) is None
    assert hinted_sensitivity("high", scale) == speedups.HINTS["high"]
    assert hinted_sensitivity(1.5, scale) == pytest.approx(0.5)
    assert hinted_sensitivity(None, scale) is None


def test_a_host_says_one_thing_of_each_flavor_and_image():
    """The median over what it measured; nothing of instances without an image."""
    there = [
        best_effort(f"i{n}", speedup, vcpus=2, flavor="m1", image=image)
        for n, (speedup, image) in enumerate([(1.1, "a"), (1.5, "a"), (9.0, "a"), (1.2, "")])
    ]
    booked = instance("b", (0.5, 0), flavor="m1", image="b")

    said = profiles(host_report(*there, booked, topology=ONE_EACH))

    assert said == {("m1", "a"): pytest.approx(0.5)}
    one_type = hosts.topology({"slow": (2, 1.0)})
    assert not profiles(host_report(*there, topology=one_type))


def test_a_newcomer_on_a_host_without_best_effort():
    """It shares the cores with nobody, also where rounding would leave somebody a bit of them."""
    topology = hosts.topology({"slow": (3, 1.0), "fast": (1, 2.0)})
    demand = demand_of(instance("a", (0.3, 0)), topology=topology)
    _, speed = score(demand, NewInstance(6, sensitivity=0.5))
    assert speed * 6 == pytest.approx(2.7 + 1.5)


def test_a_sleeping_instance_takes_no_share():
    """An idle instance leaves its cores to the new one."""
    idle = best_effort("a", 2.0)
    asleep = structs.replace(idle, vcpus=(structs.replace(idle.vcpus[0], utilization_ratio=0.0),))

    assert score(demand_of(asleep), NewInstance(1, sensitivity=0.5))[1] == 1.5


def divided(demand, sensitivities, counts):
    """The throughput of the host and of instance "", divided as policies divide cores evenly."""
    keys = [(name, i) for name, count in counts.items() for i in range(count)]
    vcpus = tuple(VcpuView(key, frozenset(), frozenset()) for key in keys)
    everywhere = frozenset(range(len(demand.cores)))
    cores, coefficients = tuple(demand.cores.values()), tuple(demand.coefficients.values())
    each = min(1.0, sum(cores) / len(vcpus)) if vcpus else 0.0
    shares = evenly(SharedCapacity(vcpus, cores, each, dict.fromkeys(keys, everywhere)))
    total, own, idle = 0.0, 0.0, list(cores)
    for (name, _), amounts in shares.items():
        for at, coefficient in enumerate(coefficients):
            speed = amounts[at] * (1.0 + sensitivities[name] * (coefficient - 1.0))
            total, own = total + speed, own + (speed if name == "" else 0.0)
            idle[at] -= amounts[at]
    return total + sum(map(operator.mul, idle, map(idle_worth, coefficients))), own


@given(
    st.lists(st.tuples(st.sampled_from([None, 1.0, 1.2, 1.5, 2.0]), st.integers(1, 4)), max_size=6),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    st.sampled_from(
        [{"slow": (2, 1.0), "fast": (1, 2.0)}, {"a": (1, 1.0), "b": (2, 1.5), "c": (1, 3.0)}]
    ),
)
def test_the_score_is_what_an_even_division_of_the_cores_gives(present, vcpus, own, types):
    """A mean sensitivity gives the same as a division of the cores among all vCPUs."""
    topology = hosts.topology(types)
    there = [best_effort(f"i{n}", s, count) for n, (s, count) in enumerate(present)]
    scale = scale_of(topology)
    found = {i.resource: sensitivity_of(i, scale) for i in there}
    sensitivities = {name: UNKNOWN if s is None else s for name, s in found.items()}
    counts = {i.resource: len(i.vcpus) for i in there}
    demand = demand_of(*there, topology=topology)

    gain, speed = score(demand, NewInstance(vcpus, sensitivity=own))

    before, _ = divided(demand, sensitivities, counts)
    after, newcomer = divided(demand, {**sensitivities, "": own}, {**counts, "": vcpus})
    assert demand.throughput == pytest.approx(before, abs=1e-9)
    assert gain == pytest.approx((after - before) / vcpus, abs=1e-9)
    assert speed == pytest.approx(newcomer / vcpus, abs=1e-9)
