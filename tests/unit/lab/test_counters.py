# SPDX-License-Identifier: Apache-2.0
"""The simulated counters: what instructions, cycles and cache misses tell about the work."""

import pytest

from amp_nova.model.bandwidth import Bandwidth
from amp_nova_lab.counters import Counting, rates
from amp_nova_lab.host import SimHost
from amp_nova_lab.scenarios.workload import Phase
from tests.unit.lab.builders import guest, place, topology

FAST, SLOW = 0, 1


def counts(host, name="vm"):
    (domain,) = (d for d in host.observe().domains if d.domain.name == name)
    return domain.vcpus[0].counts


def ran(on, *, speed=2.0, coefficient=2.0, **more):
    """Counters after a second alone on these pCPUs."""
    host = SimHost(topology(coefficient=coefficient), [guest(speed=speed, **more)])
    place(host, on)
    host.advance(1.0)
    return counts(host)


def test_instructions_follow_the_speed_of_the_work():
    """The reference core's Ips on the slow type, times the work's speedup on the fast type."""
    assert ran(SLOW, speed=1.5).instructions == 2_000_000_000
    assert ran(FAST, speed=1.5).instructions == 3_000_000_000


def test_counters_show_the_ipc_of_the_scenario():
    """It overrides the model's."""
    found = rates(topology(), (1.0, 2.0), {"fast": 1.6, "slow": 0.8})

    assert [r.instructions / r.cycles for r in found] == [pytest.approx(0.8), pytest.approx(1.6)]


def test_an_ipc_ratio_changes_instructions_only():
    """Cycles per second and misses per instruction stay the same."""
    usual, low = (ran(SLOW, speed=1.5, phases=(Phase((1.0, 1.5), ipc_ratio=r),)) for r in (1, 0.5))

    assert low.instructions == usual.instructions / 2
    assert low.cycles == pytest.approx(usual.cycles)
    assert low.cache_misses == pytest.approx(usual.cache_misses / 2)


def test_noise_affects_cycles_and_misses_and_depends_on_the_seed():
    """Instructions have none; equal seeds give equal noise."""
    seen = []
    for seed in (1, 1, 2):
        noise = Counting(noise_ratio=0.1, seed=seed)
        host = SimHost(topology(), [guest(speed=1.2)], counting=noise)
        host.advance(1.0)
        seen.append(counts(host))

    assert seen[0] == seen[1]
    assert seen[0].cycles != seen[2].cycles
    assert seen[0].instructions == seen[2].instructions


def test_samples_and_limits_between_cycles():
    """Samples equal the readings; a limit applies from the moment it is written."""
    host = SimHost(topology(), [guest()])
    place(host, SLOW)
    host.advance(0.5)
    assert host.throttle({("vm", 0): Bandwidth(5_000, 20_000), ("gone", 0): Bandwidth(1, 1)}) == {}
    host.advance(1.5)

    (sample,) = host.sample([("vm", 0), ("vm", 7), ("gone", 0)]).values()

    assert (sample.time_ns, sample.run_ns, sample.wait_ns) == (1_500_000_000, *[750_000_000] * 2)
    assert sample.instructions == counts(host).instructions == 1_500_000_000
