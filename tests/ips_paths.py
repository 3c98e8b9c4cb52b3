"""Guests that book instructions per second and change what they do, on the simulated host.

A guest's instructions per CPU second follow a path: levels, each held for some time. Its booking is
a part of the least that its core gives on that path, so that it can always be delivered.
"""

from dataclasses import dataclass

from amp_nova.agent.loop import Loop
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
    ticks = round(1.0 / loop.fast.tick_s)
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
