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


@pytest.mark.parametrize("coefficient", [1.25, 2.0, 2.375, 4.7])
@pytest.mark.parametrize("gain", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_cycles_are_those_of_two_clocks(coefficient, gain):
    """For any work, cycles per second are in the ratio of the clocks."""
    speed = 1.0 + gain * (coefficient - 1.0)

    slow, fast = (ran(on, speed=speed, coefficient=coefficient) for on in (SLOW, FAST))

    assert fast.cycles / slow.cycles == pytest.approx(coefficient, rel=1e-6)


def test_memory_shows_in_ipc_and_in_cache_misses():
    """The less a fast core helps, the lower the IPC and the more misses per instruction."""
    seen = [ran(SLOW, speed=s) for s in (1.0, 1.1, 1.5, 1.9, 2.0)]

    ipc = [c.instructions / c.cycles for c in seen]
    misses = [c.cache_misses / c.instructions for c in seen]

    assert ipc == sorted(ipc)
    assert misses == sorted(misses, reverse=True)
    assert ipc[-1] == pytest.approx(2.0)
    assert misses[-1] == 0.0


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


def test_a_host_without_counters():
    """There are no counts and no samples."""
    host = SimHost(topology(), [guest()], counting=Counting(works=False))
    host.advance(1.0)

    assert counts(host) is None
    assert host.sample([("vm", 0)]) == {}


def test_the_fast_loop_samples_and_throttles():
    """Samples equal the readings; a limit applies from the moment it is written."""
    host = SimHost(topology(), [guest()])
    place(host, SLOW)
    host.advance(0.5)
    assert host.throttle({("vm", 0): Bandwidth(5_000, 20_000), ("gone", 0): Bandwidth(1, 1)}) == {}
    host.advance(1.5)

    (sample,) = host.sample([("vm", 0), ("vm", 7), ("gone", 0)]).values()

    assert (sample.time_ns, sample.run_ns, sample.wait_ns) == (1_500_000_000, *[750_000_000] * 2)
    assert sample.instructions == counts(host).instructions == 1_500_000_000
