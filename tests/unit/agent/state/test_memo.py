# SPDX-License-Identifier: Apache-2.0
"""The loop's one cache: keyed by value, and without effect on what is written."""

from dataclasses import replace
from functools import cache

import pytest
from msgspec import structs

from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.agent.state.memo import Memo
from amp_nova.agent.state.policy_runner import PolicySettings
from amp_nova.model.topology import Topology
from amp_nova.plugins import load_policy
from amp_nova_lab.host import SimHost
from amp_nova_lab.scenarios.workload import Phase
from tests.unit.lab.builders import guest, topology


def test_equal_inputs_are_not_computed_twice():
    """Equal, not the same: what an input is decides, not which object it is."""
    calls = []

    def double(values):
        calls.append(values)
        return [2 * v for v in values]

    memo = Memo()

    assert memo(double, [1, 2]) == memo(double, [1, 2]) == [2, 4]
    assert memo(double, [1]) == [2]
    assert calls == [[1, 2], [1]]


class Recorded:
    """A host that remembers all that was written to it, and can give copies of its readings."""

    def __init__(self, host, *, copies):
        self.host, self.copies, self.written = host, copies, []

    def observe(self):
        seen = self.host.observe()
        if not self.copies:
            return seen
        domains = (
            structs.replace(
                d, domain=replace(d.domain), vcpus=tuple(structs.replace(v) for v in d.vcpus)
            )
            for d in seen.domains
        )
        known = seen.topology
        copied = Topology(known.core_types, known.pcpus, known.reference, known.source)
        return replace(seen, topology=copied, domains=tuple(domains))

    def apply(self, changes):
        self.written.append(changes)
        return self.host.apply(changes)

    def sample(self, keys):
        return self.host.sample(keys)

    def throttle(self, limits):
        self.written.append(limits)
        return self.host.throttle(limits)


def simulated():
    """Bookings of all kinds beside best effort that a policy moves, on a simulated host."""
    guests = [
        guest(
            "ips", phases=(Phase((1.0, 2.0), for_s=3.0), Phase((0.7, 1.1), for_s=2.0)), ips="0.8G"
        ),
        guest("burst", utilization=0.5, pref_core="0.3", burst_s="2"),
        guest("mixed", 2, speed=1.4, pref_core__0="0.5"),
        guest("gains", speed=1.9),
        guest("waits", speed=1.1),
    ]
    return SimHost(topology(fast=2, slow=2), guests)


@cache  # tests compare with the same writes
def written(*, memoize=True, copies=False):
    """All writes of 40 seconds, with a guest that stops and one that starts."""
    host = simulated()
    recorded = Recorded(host, copies=copies)
    settings = LoopSettings(adaptive=True, policy=PolicySettings(2.0), memoize=memoize)
    loop = Loop(recorded, recorded, settings, load_policy("amp-fair"), stopwatch=lambda: 0.0)
    for step in range(400):
        host.advance(step * 0.1)
        if step == 150:
            host.remove("waits")
        if step == 250:
            host.add(guest("late", pref_core="0.7"))
        if loop.tick_s and step % 2 == 0:
            loop.tick()
        if step % 10 == 0:
            loop.cycle()
    return recorded.written


@pytest.mark.parametrize("other", [{"memoize": False}, {"copies": True}])
def test_without_the_cache_the_same_is_written(other):
    """Nor does it matter whether a sensor gives the same objects again or equal ones."""
    expected = written()

    assert sum(bool(w) for w in expected) > 20
    assert written(**other) == expected
