# SPDX-License-Identifier: Apache-2.0
"""What holds for every booking of instructions per second, whatever the work does.

On the simulated host. A guest's instructions per CPU second follow a path: levels, each held for
some time. Its booking is a part of the least that its core gives on that path, so that it can
always be delivered.
"""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_nova.agent.loop import Loop
from amp_nova.control.context import Terms
from amp_nova.control.limit import CARRY_S
from amp_nova.flavor.extra_specs import parse
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova_lab.host import SimHost
from amp_nova_lab.scenarios.scenario import Guest
from amp_nova_lab.scenarios.workload import Phase, Workload
from tests.properties.examples import examples

REFERENCE_IPS = 2e9
COEFFICIENT = 2.375
TYPES = (
    CoreType("slow", 1.0, "test", nominal_ips=REFERENCE_IPS),
    CoreType("fast", COEFFICIENT, "test", nominal_ips=REFERENCE_IPS * COEFFICIENT),
)
TICK_S = Terms().tick_s
GREATEST = 2.0
"""The greatest level of a path, over its least."""


def topology(each):
    """A host with ``each`` cores of each type."""
    names = [t.name for t in TYPES for _ in range(each)]
    pcpus = tuple(PCpu(i, name, (i,), llc=0) for i, name in enumerate(names))
    return Topology(TYPES, pcpus, "slow", "test")


def guest(name, core_type, booked, path, utilization=1.0, **specs):
    """A guest that books this part of the least that its path gives on a core type."""
    (coefficient,) = (t.coefficient for t in TYPES if t.name == core_type)
    ips = booked * REFERENCE_IPS * coefficient
    named = {"amp:ips": f"{ips:.0f}", "amp:core_type": core_type}
    named |= {f"amp:{key}": value for key, value in specs.items()}
    speeds = (1.0, COEFFICIENT)
    phases = tuple(Phase(speeds, utilization, for_s, ratio) for ratio, for_s in path)
    return Guest(name, parse(named, 1), Workload(phases), named, start_on=core_type)


@dataclass
class Delivered:
    """Delivered over owed of one guest: over the run, and of its extreme seconds.

    Owed as the account has it.
    """

    ratio: float
    least: float
    most: float


def run(guests, lasts_s, each):
    """Run the agent's loop with these guests; returns what each was delivered."""
    host = SimHost(topology(each), guests)
    loop = Loop(host, host)
    loop.cycle()
    ticks = round(1.0 / loop.tick_s)
    seconds = {g.name: [] for g in guests}
    before = {g.name: host.meters(g.name)[0] for g in guests}
    for second in range(lasts_s):
        for tick in range(1, ticks + 1):
            host.advance(second + tick / ticks)
            loop.tick()
        for g in guests:
            after = host.meters(g.name)[0]
            seconds[g.name].append(_second(before[g.name], after))
            before[g.name] = after
        loop.cycle()
    return {g.name: _delivered(g.booking.vcpus[0].ips, seconds[g.name]) for g in guests}


def _second(before, after):
    """Instructions, and the seconds that the guest wanted a pCPU."""
    ran_s = sum(after.run_s) - sum(before.run_s)
    return after.instructions - before.instructions, ran_s + after.wait_s - before.wait_s


def _owed(ips, got, wanted_s, wall_s):
    return max(ips * wanted_s, min(got, ips * wall_s))


def _delivered(ips, seconds):
    ratios = [got / _owed(ips, got, wanted_s, 1.0) for got, wanted_s in seconds]
    total, wanted_s = (sum(column) for column in zip(*seconds, strict=True))
    owed = _owed(ips, total, wanted_s, len(seconds))
    return Delivered(total / owed, min(ratios), max(ratios))


LASTS_S = 12
bookings = st.sampled_from([0.02, 0.05, 0.1, 0.3, 0.5, 0.8, 0.95, 0.98])
core_types = st.sampled_from(["slow", "fast"])
# Levels of any size, each held long enough that a second sees one change or two.
phases = st.lists(st.tuples(st.floats(1.0, GREATEST), st.floats(0.6, 3.0)), min_size=1, max_size=8)
steps = st.lists(st.tuples(st.floats(0.94, 1.06), st.floats(0.05, 0.2)), min_size=20, max_size=60)


def walked(made):
    """Steps as a walk between the least level and the greatest."""
    level, path = 1.4, []
    for factor, for_s in made:
        level = min(GREATEST, max(1.0, level * factor))
        path.append((level, for_s))
    return path


@settings(max_examples=examples(25))
@given(st.tuples(bookings, core_types, phases | steps.map(walked)))
def test_a_booking_is_held(case):
    """Within 1 % over the run; a second is off by what a change does until it is measured."""
    booked, core_type, path = case
    made = guest("vm", core_type, booked, path)

    got = run([made], LASTS_S, each=1)["vm"]

    assert got.ratio == pytest.approx(1.0, abs=0.01)
    assert got.least >= 1.0 - 2.0 * TICK_S
    assert got.most <= 1.0 + 2.0 * TICK_S


@settings(max_examples=examples(15))
@given(bookings, core_types, phases, st.sampled_from([0.05, 0.3, 0.5, 0.7]))
def test_who_rests_gets_its_booking_when_it_wants_it(booked, core_type, path, utilization):
    """Never more than the booking of the whole time, nor much less than of the time it wants."""
    made = guest("vm", core_type, booked, path, utilization)

    got = run([made], LASTS_S, each=1)["vm"]

    assert got.ratio == pytest.approx(1.0, abs=0.01)
    assert got.most <= 1.0 + TICK_S


@settings(max_examples=examples(15))
@given(st.floats(1.02, 5.0), phases)
def test_more_than_a_core_gives_winds_nothing_up(booked, path):
    """Half a run in which it is too much does not lead to more than the booking in the other."""
    slow = [(level / booked / GREATEST, for_s) for level, for_s in path]
    made = guest("vm", "slow", 0.9, [*slow, (1.0, 100.0)])
    lasts_s = int(sum(for_s for _, for_s in slow)) + 4

    got = run([made], lasts_s, each=1)["vm"]

    assert got.most <= 1.0 + CARRY_S + TICK_S
