# SPDX-License-Identifier: Apache-2.0
"""What holds for every policy through the loop, on hosts with bookings and guests that sleep."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.agent.state.policy_runner import PolicySettings
from amp_nova.control.context import Terms
from amp_nova.flavor.extra_specs import parse
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.plugins import load_policy, policies
from amp_nova_lab.host import SimHost
from amp_nova_lab.report import Windows
from amp_nova_lab.scenarios.scenario import Guest
from amp_nova_lab.scenarios.workload import Phase, Workload
from tests.properties.examples import examples
from tests.support.hosts import topology

INTERVAL_S = 2.5
INTERVALS = 6
"""Whoever is runnable all the time runs at least once in so many intervals."""
DURATION_S = 30
QUOTA_ROUNDING = 0.0006
PLACING = sorted({*policies()} - {"none"})


def topology_of(chance):
    kinds = chance.randint(2, 4)
    names = [f"type{i}" for i in range(kinds) for _ in range(chance.choice([1, 1, 2, 3]))]
    coefficients = (1.0, *sorted(chance.uniform(1.2, 4.0) for _ in range(kinds - 1)))
    types = tuple(CoreType(f"type{i}", c) for i, c in enumerate(coefficients))
    pcpus = tuple(PCpu(i, name, (i,), llc=i // 2 * 2) for i, name in enumerate(names))
    return Topology(types, pcpus, "type0", "test")


def phases(chance, topology):
    """Always busy, in bursts, or asleep for seconds at a time."""
    speeds = (1.0, *sorted(chance.uniform(1.0, 4.0) for _ in topology.core_types[1:]))
    kind = chance.choice(["always", "always", "bursts", "sleeps"])
    if kind == "always":
        return (Phase(speeds),)
    if kind == "bursts":
        return (Phase(speeds, chance.choice([0.2, 0.5])),)
    awake_s, asleep_s = chance.choice([2.5, 4.0]), chance.choice([2.5, 7.0])
    return Phase(speeds, 1.0, awake_s), Phase(speeds, 0.0, asleep_s)


def host_of(seed):
    """0.1 to 3 vCPUs for each pCPU; at most half of it is booked, and that fits."""
    chance = random.Random(seed)
    topology = topology_of(chance)
    count = max(1, round(chance.uniform(0.1, 3.0) * len(topology.pcpus)))
    room_refcores = sum(topology.type_of(p.id).coefficient for p in topology.pcpus) / 2
    guests = []
    while count > 0:
        vcpus = min(count, chance.choice([1, 1, 2, 3]))
        count -= vcpus
        specs = {"amp:weight": chance.choice(["1", "1", "0.2", "5"])}
        size = chance.choice([0.1, 0.3, 0.8])
        if chance.random() < 0.4 and size * vcpus < room_refcores:
            room_refcores -= size * vcpus
            specs = {"amp:pref_core": str(size)}
        workload = Workload(phases(chance, topology))
        guests.append(Guest(f"vm{count}", parse(specs, vcpus), workload, specs))
    return SimHost(topology, guests, seed=chance.randrange(9)), guests


def cycles(policy, host):
    """Every second, and every decision, as the agent would."""
    # On the one pCPU it was packed onto a booking is exact; on a nearly full core type the host's
    # scheduler may not find the way to pack all.
    # The reserve is the time that best effort has on a pCPU that is booked in full.
    how = LoopSettings(Terms(0.05, one_pcpu=True), policy=PolicySettings(INTERVAL_S))
    loop = Loop(host, host, how, load_policy(policy), lambda: 0.0)
    intervals = (INTERVAL_S * n for n in range(1, int(DURATION_S / INTERVAL_S)))
    for at_s in sorted({*range(1, DURATION_S + 1), *intervals}):
        yield loop.cycle()
        host.advance(float(at_s))


@pytest.mark.parametrize("policy", PLACING)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(4))
def test_booked_never_below_booking_and_nobody_starves(policy, seed):
    """In every second, whatever a policy does with the others; and these all have their turns.

    And no core type gives more time than it has.
    """
    host, guests = host_of(seed)
    windows = {g.name: Windows(g.booking, host.topology) for g in guests}
    ran_s, since_s, second, unpacked = {}, {}, 0, set()
    for report in cycles(policy, host):
        unpacked |= {d.domain.name for d in report.domains for v in d.vcpus if v.entitlement.note}
        closes = host.now_s >= second + 1
        second += closes
        for guest in guests:
            meters = host.meters(guest.name)
            if closes and guest.booking.booked:
                windows[guest.name].close(meters, 1.0)
            if guest.booking.booked or len(guest.workload.phases) > 1:
                continue
            for index, meter in enumerate(meters):
                key, run_s = (guest.name, index), math.fsum(meter.run_s)
                if run_s > ran_s.get(key, 0.0) + 1e-6:
                    ran_s[key], since_s[key] = run_s, host.now_s
                assert host.now_s - since_s.get(key, 0.0) <= INTERVALS * INTERVAL_S, key

    for name, window in windows.items():
        least = window.result().least
        if name not in unpacked and least is not None:
            assert least >= 1.0 - QUOTA_ROUNDING, name
    for at, core_type in enumerate(host.topology.core_types):
        run_s = math.fsum(m.run_s[at] for g in guests for m in host.meters(g.name))
        assert run_s <= DURATION_S * len(host.topology.pcpus_of(core_type.name)) + 1e-6


SHARING = (
    *("a-dwrr", "aash", "acfs", "amp-adaptive-fair", "amp-fair", "amp-r-fair"),
    *("eqp", "hsp", "prop-sp", "rr"),
)
"""Policies that give fast cores to whoever is behind or gains; others do not move guests for it."""


@pytest.mark.parametrize("name", SHARING)
@settings(max_examples=examples(10))
@given(seed=st.integers(0, 2**32))
def test_nobody_is_frozen_out_of_the_fast_cores(name, seed):
    """Whatever others gain, also if that is nothing, or if it is known because they are bound."""
    chance = random.Random(seed)
    slow, fast = chance.randint(1, 3), chance.randint(1, 2)
    kinds = topology({"slow": (slow, 1.0), "fast": (fast, 2.0)})
    guests = []
    for i in range(slow + fast):
        bound = i < slow and chance.random() < 0.4
        specs = {"amp:core_type": "slow"} if bound else {}
        work = Workload((Phase((1.0, chance.choice([1.0, 1.0, 1.5, 2.0, 3.0]))),))
        guests.append(Guest(f"vm{i}", parse(specs, 1), work, specs))
    host = SimHost(kinds, guests)
    loop = Loop(host, host, LoopSettings(policy=PolicySettings(INTERVAL_S)), load_policy(name))
    tried = {guest.name for guest in guests if guest.booking.core_type}
    for step in range(int(10 * INTERVAL_S)):
        host.advance(float(step + 1))
        for domain in loop.cycle().domains:
            if kinds.only_type(domain.vcpus[0].reading.pcpus) == kinds.core_types[-1]:
                tried.add(domain.domain.resource)
    assert tried == {guest.name for guest in guests}
