# SPDX-License-Identifier: Apache-2.0
"""Invariants of the simulator, for any host and guests, at any time."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.agent.state.policy_runner import PolicySettings
from amp_nova.flavor.extra_specs import parse
from amp_nova.model.cpu_weight import BEST_EFFORT, BOOKED, FLOOR_CORES
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.plugins import load_policy
from amp_nova_lab.cores import share
from amp_nova_lab.host import SimHost
from amp_nova_lab.scenarios.scenario import Guest, Scenario
from amp_nova_lab.scenarios.workload import Phase, Workload
from tests.properties.examples import examples

QUOTA_ROUNDING = 0.0006
"""A quota is at least 1000 whole microseconds, so it is off by half of one at most."""


@st.composite
def hosts(draw):
    coefficients = sorted(draw(st.lists(st.sampled_from([1.25, 2.0, 2.375, 4.0]), unique=True)))
    types = tuple(CoreType(f"type{i}", c) for i, c in enumerate([1.0, *coefficients[:2]]))
    counts = [draw(st.integers(1, 3)) for _ in types]
    names = [t.name for t, count in zip(types, counts, strict=True) for _ in range(count)]
    pcpus = tuple(PCpu(i, name, (i,), llc=i // 2 * 2) for i, name in enumerate(names))
    return Topology(types, pcpus, "type0", "test")


@st.composite
def workloads(draw, topology):
    faster = topology.core_types[1:]
    speeds = (1.0, *(draw(st.sampled_from([1.0, 1.5, 3.0])) for _ in faster))
    busy = st.sampled_from([0.0, 0.2, 0.5, 1.0])
    phases = draw(
        st.one_of(
            st.builds(lambda u: (Phase(speeds, u),), busy),
            st.builds(
                lambda u, v: (Phase(speeds, u, 1.7), Phase(speeds, v, 0.45)),
                busy,
                busy,
            ),
        )
    )
    if draw(st.booleans()):
        phases = tuple(phase.by_work() for phase in phases)
    work = draw(st.sampled_from([None, None, 2.5]))
    barrier = draw(st.sampled_from([None, None, 0.3, (0.0, 0.7)]))
    each = st.builds(lambda w: Workload(phases, w, barrier), st.sampled_from([None, 0.5, 3.1]))
    return Workload(phases, work, barrier, vcpus=tuple(draw(st.lists(each, max_size=2))))


@st.composite
def guests(draw, topology, name):
    vcpus = draw(st.integers(1, 3))
    specs = {}
    if draw(st.booleans()):
        specs["amp:pref_core"] = str(draw(st.sampled_from([0.1, 0.25, 0.5, 0.7, 1.0, 1.5])))
        specs["amp:limit"] = draw(st.sampled_from(["hard", "hard", "soft"]))
    start_on = draw(st.sampled_from([None, *(t.name for t in topology.core_types)]))
    return Guest(name, parse(specs, vcpus), draw(workloads(topology)), specs, start_on)


@st.composite
def scenarios(draw, least=0):
    topology = draw(hosts())
    count = draw(st.integers(least, 5))
    made = tuple(draw(guests(topology, f"vm{i}")) for i in range(count))
    policy = draw(st.sampled_from(["none", "credit", "pinned"]))
    return Scenario("made", 6.0, topology, made, policy, draw(st.integers(0, 3)))


def seconds(made, host, enforce=True):
    """Run second by second as the agent would; yields the meters of all guests."""
    loop = Loop(
        host,
        host,
        LoopSettings(dry_run=not enforce, policy=PolicySettings(seed=made.seed)),
        load_policy(made.policy),
    )
    for second in range(1, int(made.duration_s) + 1):
        loop.cycle()
        host.advance(float(second))
        yield {g.name: host.meters(g.name) for g in made.guests}


@given(st.floats(0.01, 0.95), st.integers(1, 5))
def test_best_effort_keeps_a_hundredth_and_a_booking_its_limit_up_to_the_reserve(booked, others):
    """Five best-effort vCPUs that run all the time, and the default reserve: nobody is short."""
    shares = share([booked, *[1.0] * others], [BOOKED, *[BEST_EFFORT] * others])

    assert math.isclose(shares[0], booked, rel_tol=1e-3)
    assert min(shares[1:]) >= FLOOR_CORES * (1.0 - 1e-9) * (1.0 - 0.05)


@given(scenarios())
@settings(max_examples=examples(40))
def test_cpu_time_is_conserved_and_a_hard_booking_never_exceeded(made):
    """In any second, on any core type, under any policy."""
    host = SimHost(made.topology, made.guests, made.seed)
    coefficients = [t.coefficient for t in made.topology.core_types]
    before = {}
    for second, meters in enumerate(seconds(made, host), 1):
        for at, core_type in enumerate(made.topology.core_types):
            run_s = sum(m.run_s[at] for ms in meters.values() for m in ms)
            assert run_s <= len(made.topology.pcpus_of(core_type.name)) * second + 1e-6
        for guest in made.guests:
            for booked, meter in zip(guest.booking.vcpus, meters[guest.name], strict=True):
                assert sum(meter.run_s) + meter.wait_s <= second + 1e-6
                assert meter.throttled_s <= meter.wait_s + 1e-6
                key = (guest.name, booked.index)
                got = sum(s * c for s, c in zip(meter.run_s, coefficients, strict=True))
                if booked.refcores is not None and guest.booking.limit == "hard":
                    most = booked.refcores * (1 + QUOTA_ROUNDING)
                    assert got - before.get(key, 0.0) <= most + 1e-9
                before[key] = got


@given(scenarios(least=1))
@settings(max_examples=examples(40))
def test_no_pcpu_idles_while_a_vcpu_waits(made):
    """With constant demand and no limits, all time is used."""
    always = tuple(
        Guest(g.name, parse({}, len(g.booking.vcpus)), Workload((Phase((1.0, 2.0, 3.0)),)), {})
        for g in made.guests
    )
    vcpus = sum(len(g.booking.vcpus) for g in always)
    host = SimHost(made.topology, always, made.seed)
    host.advance(3.0)

    run_s = sum(sum(m.run_s) for g in always for m in host.meters(g.name))

    assert math.isclose(run_s, 3.0 * min(vcpus, len(made.topology.pcpus)), abs_tol=1e-6)
