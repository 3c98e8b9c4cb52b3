# SPDX-License-Identifier: Apache-2.0
"""Random hosts whose core types have SMT siblings: does every admitted booking get what it books?

The simulated host knows what every vCPU got, and the agent does not. Two hosts by default;
``AMP_NOVA_HOSTS=20 python -m pytest -s tests/benchmarks/test_random_hosts.py`` prints the table of
twenty.
"""

import os
import random
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean

import pytest

from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.control.context import Terms
from amp_nova.flavor.extra_specs import parse
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.plugins import load_policy
from amp_nova_lab.cloud.host import RESERVE_RATIO, CloudFlavor, CloudHost
from amp_nova_lab.cloud.run import fits
from amp_nova_lab.host import SimHost
from amp_nova_lab.report import Windows
from amp_nova_lab.scenarios.scenario import Guest
from amp_nova_lab.scenarios.workload import Phase, Workload

HOSTS = int(os.environ.get("AMP_NOVA_HOSTS", "2"))
DURATION_S = 60
LONG_S = 3
"""Length of the windows that tenants are told about."""


def topology(chance):
    """Two or three core types, at least one of them with two hardware threads in each core."""
    types, pcpus = [], []
    coefficients = sorted({1.0, *(chance.uniform(1.3, 3.0) for _ in range(chance.choice((1, 2))))})
    smt = chance.randrange(len(coefficients))
    for at, coefficient in enumerate(coefficients):
        threads = 2 if at == smt or chance.random() < 0.5 else 1
        factor = chance.uniform(0.5, 0.8) if threads == 2 else None
        types.append(CoreType(f"type{at}", coefficient, 2e9, threads, smt_busy_factor=factor))
        for _ in range(chance.choice((1, 2, 4))):
            core = tuple(range(len(pcpus), len(pcpus) + threads))
            pcpus += [PCpu(p, f"type{at}", core, llc=at) for p in core]
    return Topology(tuple(types), tuple(pcpus), "type0", "random")


def workload(chance, topology, *, busy):
    """What a guest does; ``busy``: without a pause."""
    part = chance.uniform(0.1, 1.0)
    gains = [1.0 + part * ((t.coefficient or 1.0) - 1.0) for t in topology.core_types]
    phases = [Phase(tuple(gains), 1.0)]
    if not busy and chance.random() < 0.7:
        phases = [
            Phase(tuple(gains), chance.choice((0.05, 0.3, 0.6, 1.0)), chance.uniform(0.2, 8.0))
            for _ in range(2)
        ]
    return Workload(tuple(phases))


class RandomHost:
    """A host where guests come and go for a minute, and what each of them got."""

    def __init__(self, seed):
        self.chance = random.Random(f"host {seed}")
        self.topology = topology(self.chance)
        self.admits = CloudHost("host", self.topology)
        self.host = SimHost(self.topology, seed=seed)
        settings = LoopSettings(Terms(RESERVE_RATIO))
        self.loop = Loop(self.host, self.host, settings, load_policy("none"), stopwatch=lambda: 0.0)
        self.short, self.long, self.wholes, self.bookings, self.started = {}, {}, {}, {}, {}
        self.first, self.seconds, self.threes, self.means, self.believed = [], [], [], [], []

    def arrive(self, at_s):
        """A guest that fits starts; one in three is best effort."""
        vcpus = self.chance.choice((1, 1, 2, 4))
        booked = self.chance.choice((0.2, 0.35, 0.5, 0.8, 1.0, 1.3))
        specs = {} if self.chance.random() < 1 / 3 else {"amp:pref_core": str(booked)}
        name, booking = f"vm{len(self.started)}", parse(specs, vcpus)
        flavor = CloudFlavor(name, booking)
        self.started[name] = at_s
        if specs and not fits(self.admits, flavor):
            return
        self.admits.add(name, flavor)
        work = workload(self.chance, self.topology, busy=bool(specs))
        self.host.add(Guest(name, booking, work, specs))
        self.bookings[name] = booking
        if specs:
            for windows in (self.short, self.long, self.wholes):
                windows[name] = Windows(booking, self.topology)

    def leave(self, at_s):
        """A guest ends."""
        if self.bookings:
            name = self.chance.choice(sorted(self.bookings))
            self.end(name, at_s)
            self.admits.remove(name)
            self.host.remove(name)

    def end(self, name, at_s):
        """What a guest got in all, and what the agent says of it."""
        self.bookings.pop(name)
        if name not in self.short:
            return
        whole, lasted_s = self.wholes.pop(name), at_s - self.started[name]
        whole.close(self.host.meters(name), lasted_s)
        del self.short[name], self.long[name]
        if lasted_s < DURATION_S / 2:
            return
        self.means.append(whole.result().ratio)
        keys = [(name, i) for i in self.accounts.entries[name]]
        found = self.accounts.deliveries(keys).values()
        got = sum(d.got for d in found)
        self.believed.append(got / sum(d.owed for d in found))

    def run(self):
        """Guests come and go for a minute."""
        for _ in range(4 * len(self.topology.pcpus)):
            self.arrive(0)
        for second in range(DURATION_S):
            if second and self.chance.random() < 0.2:
                self.arrive(second)
            self.accounts = self.loop.cycle().accounts
            if second and self.chance.random() < 0.1:
                self.leave(second)
            self.host.advance(second + 1.0)
            for name, window in self.short.items():
                window.close(self.host.meters(name), 1.0)
                ratios = self.first if self.started[name] == second else self.seconds
                ratios.append(window.last)
            for name, window in self.long.items():
                age_s = second + 1 - self.started[name]
                if age_s % LONG_S == 0:
                    window.close(self.host.meters(name), LONG_S)
                    if age_s > LONG_S:
                        self.threes.append(window.last)
        self.accounts = self.loop.cycle().accounts
        for name in list(self.bookings):
            self.end(name, DURATION_S)
        return self.first, self.seconds, self.threes, self.means, self.believed


def measured(seed):
    """The ratios of one host."""
    return RandomHost(seed).run()


def off(ratios, most):
    """The part of the ratios that is off by more than ``most``."""
    return fmean(abs(r - 1.0) > most for r in ratios)


@pytest.mark.timeout(3600)
def test_bookings_on_random_smt_hosts(within, capsys):
    """Prints how far off windows of each length are, and how far off the agent's own figure is."""
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(measured, range(HOSTS)))
    kinds = [[r for host in found for r in host[kind] if r is not None] for kind in range(5)]
    *ratios, believed = kinds
    with capsys.disabled():
        print(f"\n{HOSTS} hosts, {len(kinds[0])} instances")
        print("delivered over booked     number  off >1 %  >3 %  >10 %  least   most")
        names = ("first second", "1 s, later", "3 s, after the first", "mean of 30 s or more")
        for name, of in zip(names, ratios, strict=True):
            print(
                f"{name:24}{len(of):8d}{off(of, 0.01):10.1%}{off(of, 0.03):6.1%}"
                f"{off(of, 0.1):7.1%}{min(of):7.3f}{max(of):7.3f}"
            )
        wrong = [abs(b - t) for b, t in zip(believed, kinds[3], strict=True)]
        print(f"the agent's mean is off by {max(wrong):.1%} at most")
    within("smt_windows_off_ratio", off(kinds[2], 0.03))
    within("smt_mean_off_ratio", max(abs(r - 1.0) for r in kinds[3]))
    within("smt_figure_off_ratio", max(wrong))
