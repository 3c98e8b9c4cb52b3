# SPDX-License-Identifier: Apache-2.0
"""Properties of bookings on cores with several hardware threads (SMT)."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_nova.admission.packing import Demand, pack
from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.hardware.effective_speed import SMT_MODES, for_admission
from amp_nova_lab.host import SimHost
from amp_nova_lab.run import run
from amp_nova_lab.scenarios.hosts import CLOCK_HZ, ClockPhase, Machine
from amp_nova_lab.scenarios.scenario import Scenario
from amp_nova_lab.scenarios.workload import Phase
from tests.properties.examples import examples
from tests.support.hosts import smt_host
from tests.unit.lab.builders import guest

NOISE = 1e-6
MODES = st.sampled_from(SMT_MODES)


@st.composite
def hosts(draw):
    factor = draw(st.sampled_from([0.5, 0.62, 0.83, 1.0]))
    threads = draw(st.sampled_from([2, 2, 3]))
    return smt_host(draw(st.integers(1, 3)), factor, draw(st.integers(0, 2)), threads=threads)


sizes = st.integers(1, 8).map(lambda n: n / 4) | st.integers(1, 20).map(lambda n: n / 10)


@st.composite
def cases(draw, most=6):
    host = draw(hosts())
    everything = frozenset(p.id for p in host.pcpus)
    wanted = [
        Demand(key, draw(sizes), everything, draw(st.none() | st.just("fast")))
        for key in range(draw(st.integers(0, most)))
    ]
    return host, draw(MODES), wanted, draw(st.sampled_from([0.0, 0.1]))


def fits(host, smt, reserve_ratio, placed, wanted):
    """Whether bookings at these places are kept, whoever else runs on the host.

    A core is shared by whoever runs there, or it is whole: then one thread has all its bookings,
    and nothing may run on the others. It is whole if what is booked on a thread needs that. The
    reserve stays free, except where one booking needs it and is alone on its pCPU.
    """
    usable = 1.0 - reserve_ratio
    for pcpu in {p.id for p in host.pcpus}:
        here = [d.refcores for d in wanted if placed[d.key] == pcpu]
        core_type = host.type_of(pcpu)
        siblings = host.siblings_of(pcpu) if core_type.smt_busy_factor is not None else ()
        slowed = 1.0
        if siblings and smt != "ignore":
            slowed = 0.0 if smt == "whole_core" else core_type.smt_busy_factor
        if slowed < 1.0:
            shared = core_type.coefficient * slowed
            needs_whole = sum(here) > shared * usable + NOISE
            if needs_whole and any(p in siblings for p in placed.values()):
                return False
            speed = core_type.coefficient if needs_whole else shared
        else:
            speed = core_type.coefficient
        full = speed == core_type.coefficient and len(here) == 1
        if here and sum(here) > speed * (1.0 if full else usable) + NOISE:
            return False
    return True


def feasible(host, smt, reserve_ratio, wanted):
    """Whether any packing keeps all bookings, by exhaustive search without ``pack``."""

    def place_from(at, placed):
        if at == len(wanted):
            return fits(host, smt, reserve_ratio, placed, wanted)
        demand = wanted[at]
        partial = wanted[: at + 1]
        for pcpu in sorted(demand.allowed):
            if demand.core_type not in (None, host.type_of(pcpu).name):
                continue
            after = {**placed, demand.key: pcpu}
            if fits(host, smt, reserve_ratio, after, partial) and place_from(at + 1, after):
                return True
        return False

    return place_from(0, {})


@given(cases(most=5))
def test_every_packing_is_kept_in_the_worst_case_and_found_if_there_is_one(case):
    """Whoever runs on the other threads, each pCPU is worth what is booked on it.

    ``pack`` succeeds if and only if exhaustive search does.
    """
    host, smt, wanted, reserve_ratio = case

    packing = pack(wanted, for_admission(host, smt), reserve_ratio)

    kept = [d for d in wanted if d.key in packing.placed]
    assert fits(host, smt, reserve_ratio, packing.placed, kept)
    order = sorted(wanted, key=lambda d: -d.refcores)
    assert packing.complete == feasible(host, smt, reserve_ratio, order)
    for pcpu in packing.whole:
        assert not set(host.siblings_of(pcpu)) & set(packing.placed.values())
        assert all(packing.free_cores[s] == 0.0 for s in host.siblings_of(pcpu))


@given(cases())
def test_siblings_that_cost_nothing_or_are_ignored_change_nothing(case):
    """``ignore`` packs as if the host had no siblings at all."""
    host, _, wanted, reserve_ratio = case
    plain = replace(host, pcpus=tuple(replace(p, siblings=()) for p in host.pcpus))

    ignored = pack(wanted, for_admission(host, "ignore"), reserve_ratio)

    assert ignored.placed == pack(wanted, plain, reserve_ratio).placed
    assert not ignored.whole


def delivered(host, guests, clocks=None, duration_s=40.0):
    """Delivered over booked capacity of each guest, as the simulated hardware gave it."""
    made = Scenario("made", duration_s, host, tuple(guests), machine=Machine(clocks or {}))
    return {name: vm.delivered_ratio for name, vm in run(made).vms.items()}


def spins_and_sleeps(*spells):
    """Phases in which a guest wants a pCPU all the time, part of it, or not at all."""
    return tuple(Phase((1.0, 2.0), ratio, seconds) for seconds, ratio in spells)


spells = st.lists(
    st.tuples(st.integers(2, 10), st.sampled_from([0.0, 0.3, 1.0])), min_size=1, max_size=3
)


@settings(max_examples=examples(15))
@given(st.sampled_from([0.5, 0.62, 0.83]), st.sampled_from([0.25, 0.6, 1.0, 1.6]), spells)
def test_a_booking_is_kept_whatever_its_sibling_does(factor, booked, spell):
    """Within 1 % on average, beside guests that spin, sleep and share the core as they may."""
    host = smt_host(2, factor, slow=1)
    neighbours = [
        guest("booked", pref_core="0.4", core_type="fast", phases=spins_and_sleeps(*spell)),
        guest("best-effort", vcpus=2),
    ]

    found = delivered(host, [guest("vm", pref_core=str(booked), core_type="fast"), *neighbours])

    assert found["vm"] == pytest.approx(1.0, abs=0.01)


clock_phases = st.lists(
    st.builds(ClockPhase, st.integers(10, 40).map(float), st.sampled_from([0.7, 0.9, 1.0, 1.2])),
    min_size=1,
    max_size=3,
)


@settings(max_examples=examples(25))
@given(clock_phases, st.sampled_from([0.25, 0.6, 1.0]))
def test_a_booking_is_kept_at_any_clock(phases, booked):
    """Within 1 % on average, while the clock goes below and above the calibrated one."""
    host = smt_host(1, slow=1)
    types = tuple(
        replace(t, clock_hz=CLOCK_HZ * t.coefficient, clock_calibrated=True)
        for t in host.core_types
    )
    host = replace(host, core_types=types)
    vm = guest("vm", pref_core=str(booked), core_type="fast")

    found = delivered(host, [vm], clocks={"fast": phases}, duration_s=120.0)

    assert found["vm"] == pytest.approx(1.0, abs=0.01)


def test_a_whole_core_is_limited_where_its_clock_gives_more_than_is_booked():
    """At 1.25 times the clock, a booking of the whole coefficient takes 0.8 of the core."""
    host = smt_host(1)
    fast = replace(host.core_types[0], clock_hz=2.0 * CLOCK_HZ, clock_calibrated=True)
    host = replace(host, core_types=(fast,))

    found = delivered(host, [guest("vm", pref_core="2")], clocks={"fast": [ClockPhase(9.0, 1.25)]})

    assert found["vm"] == pytest.approx(1.0, abs=0.01)


def test_best_effort_stays_off_a_whole_core_and_may_come_back():
    """Three spinning vCPUs beside a booking of 1.6; once it is gone they use both threads again."""
    host = smt_host(2)
    vm = guest("vm", pref_core="1.6")
    best_effort = guest("best-effort", vcpus=4)
    made = SimHost(host, [vm, best_effort])
    loop = Loop(made, made, LoopSettings(), stopwatch=lambda: 0.0)
    kept = []
    for second in range(10):
        made.advance(float(second))
        if second == 5:
            made.remove("vm")
        cycle = loop.cycle()
        kept.append({v.reading.pcpus for d in cycle.domains[1:] for v in d.vcpus})

    assert kept[3] == {frozenset({0, 2, 3})}  # pCPU 1 is the sibling of the booking's thread
    assert {v.reading.pcpus for v in loop.cycle().domains[0].vcpus} == {frozenset({0, 1, 2, 3})}
