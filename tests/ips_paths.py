"""Guests that book instructions per second and change what they do, on the simulated host.

A guest's instructions per CPU second follow a path: constant, a random walk, or two phases that
change at any moment. Its booking is a part of the least that its core gives on that path, so that
it can always be delivered.
"""

import math
import random
from dataclasses import dataclass

from amp_nova.agent.fast_loop import IpsSettings
from amp_nova.agent.loop import Loop, Settings
from amp_nova.flavor.extra_specs import parse
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.sim.host import SimHost
from amp_nova.sim.scenarios.scenario import Guest
from amp_nova.sim.scenarios.workload import Phase, Workload

REFERENCE_IPS = 2e9
COEFFICIENT = 2.375
TYPES = (
    CoreType("slow", 1.0, "test", nominal_ips=REFERENCE_IPS),
    CoreType("fast", COEFFICIENT, "test", nominal_ips=REFERENCE_IPS * COEFFICIENT),
)
GREATEST = 2.0
"""The greatest level of a path, over its least."""


def constant(_chance, lasts_s):
    """The same level all the time."""
    return [(1.0, lasts_s)]


def walk(chance, lasts_s):
    """A random walk, in steps of a few percent every 30 to 150 ms."""
    found, passed, level = [], 0.0, math.sqrt(GREATEST)
    while passed < lasts_s:
        for_s = chance.uniform(0.03, 0.15)
        found.append((level, for_s))
        passed += for_s
        level = min(GREATEST, max(1.0, level * math.exp(chance.gauss(0.0, 0.05))))
    return found


def two_phases(chance, lasts_s):
    """The least level and the greatest in turn, for 0.3 to 4 s each."""
    found, passed = [], 0.0
    while passed < lasts_s:
        for_s = chance.uniform(0.3, 4.0)
        found.append((GREATEST if len(found) % 2 else 1.0, for_s))
        passed += for_s
    return found


PATHS = {"constant": constant, "random walk": walk, "two phases": two_phases}


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

    Owed as the account has it. ``wanted``: over the run, where a burst that the guest banked
    by sleeping counts as too much.
    """

    ratio: float
    least: float
    most: float
    wanted: float


def run(guests, lasts_s, controller="default", each=8, skip_s=0):
    """Run the agent's loop with these guests; returns what each was delivered after ``skip_s``."""
    host = SimHost(topology(each), guests, reference_ips=REFERENCE_IPS)
    loop = Loop(host, host, Settings(ips=IpsSettings(controller)))
    loop.cycle()
    ticks = round(1.0 / loop.fast.tick_s)
    seconds = {g.name: [] for g in guests}
    before = {g.name: host.meters(g.name)[0] for g in guests}
    for second in range(lasts_s):
        for tick in range(1, ticks + 1):
            host.advance(second + tick / ticks)
            loop.fast.tick()
        for g in guests:
            after = host.meters(g.name)[0]
            if second >= skip_s:
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
    return Delivered(total / owed, min(ratios), max(ratios), total / (ips * wanted_s))


def chance(*words):
    """A generator that is the same for the same words."""
    return random.Random(" ".join(str(word) for word in words))
