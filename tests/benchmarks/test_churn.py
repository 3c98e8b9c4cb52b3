# SPDX-License-Identifier: Apache-2.0
"""What an agent's loop keeps of guests that are gone, over many cycles: nothing.

``AMP_NOVA_CYCLES=1000000 python -m pytest -s -o timeout=0 tests/benchmarks/test_churn.py`` takes
half an hour.
"""

import gc
import os
import random
import sys

from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.control.context import Terms
from amp_nova.flavor.extra_specs import parse
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.plugins import load_policy
from amp_nova_lab.host import SimHost
from amp_nova_lab.scenarios.scenario import Guest
from amp_nova_lab.scenarios.workload import Phase, Workload

CYCLES = int(os.environ.get("AMP_NOVA_CYCLES", "4000"))
GUESTS = 5
TOPOLOGY = Topology(
    (CoreType("slow", 1.0, 2e9), CoreType("fast", 2.0, 2e9, 2, smt_busy_factor=0.6)),
    (
        PCpu(0, "slow", (0,)),
        PCpu(1, "slow", (1,)),
        PCpu(2, "fast", (2, 3)),
        PCpu(3, "fast", (2, 3)),
    ),
    "slow",
    "random",
)


class Churn:
    """One host; about every tenth cycle a guest comes, and one leaves if there are too many."""

    def __init__(self):
        self.chance, self.made, self.here, self.cycles = random.Random(1), 0, [], 0
        self.host = SimHost(TOPOLOGY, seed=1)
        settings = LoopSettings(Terms(0.05))
        policy = load_policy("acfs")
        self.loop = Loop(self.host, self.host, settings, policy, stopwatch=lambda: 0.0)

    def run(self, cycles):
        """That many cycles; the memory blocks that Python has allocated after them."""
        for _ in range(cycles):
            if self.chance.random() < 0.1:
                self.replace()
            self.loop.cycle()
            self.cycles += 1
            self.host.advance(float(self.cycles))
        while self.here:  # so that what is counted does not depend on who is there
            self.host.remove(self.here.pop())
        self.loop.cycle()
        gc.collect()
        return sys.getallocatedblocks()

    def replace(self):
        """A guest arrives; some book."""
        share = self.chance.choice((None, "0.1", "0.3", "0.5"))
        specs = {} if share is None else {"amp:pref_core": share}
        phase = Phase((1.0, self.chance.uniform(1.0, 2.0)), self.chance.choice((0.3, 1.0)))
        name = f"vm{self.made}"
        self.made += 1
        self.host.add(Guest(name, parse(specs, 1), Workload((phase,)), specs))
        self.here.append(name)
        if len(self.here) > GUESTS:
            self.host.remove(self.here.pop(self.chance.randrange(GUESTS)))


def test_nothing_is_kept_of_guests_that_are_gone(within):
    churn = Churn()
    warm = blocks = churn.run(CYCLES // 5)
    before = churn.made
    for _ in range(8):
        blocks = churn.run(CYCLES // 10)
        print(f"{churn.cycles} cycles, {churn.made} guests, {blocks} blocks")
    within("blocks_kept_of_a_guest", (blocks - warm) / (churn.made - before))
