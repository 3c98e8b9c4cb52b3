"""Waiting busily at locks and barriers, and what a move to another cache costs."""

import pytest

from amp_nova.model.allocation import Change, Changes, Step
from amp_nova.plugins import load_policy
from amp_nova.sim.host import SimHost
from amp_nova.sim.run import run
from amp_nova.sim.scenarios.hosts import Machine
from amp_nova.sim.scenarios.programs import Lock
from amp_nova.sim.scenarios.scenario import Guest
from amp_nova.sim.scenarios.workload import Phase, Workload
from amp_nova.sim.slots import run as slots
from tests.unit.sim.builders import guest, scenario, topology

BUSY = (Phase((1.0, 2.0)),)


def doing(vcpus=1, name="vm", **workload):
    """A best-effort guest that does this."""
    return Guest(name, guest(vcpus=vcpus).booking, Workload(BUSY, **workload), {})


def outcome(made, duration_s, slow, fast=0):
    """What it did alone, without an agent."""
    host = SimHost(topology(fast=fast, slow=slow), (made,))
    host.advance(duration_s)
    return host.outcome("vm")


def test_a_lock_is_the_bottleneck():
    """Eight vCPUs of which one at a time does 0.1 s of every 0.4 s: four at work, all run."""
    found = outcome(doing(8, lock=Lock(0.3, 0.1)), 1000.0, slow=8)

    assert found.speed == pytest.approx(4 / 8, rel=1e-3)
    assert sum(sum(m.run_s) for m in found.meters) == pytest.approx(8000.0)


def test_a_lock_that_is_free_costs_nothing_in_the_long_run():
    """Two vCPUs collide once, and then never again."""
    found = outcome(doing(2, lock=Lock(0.3, 0.1)), 1000.0, slow=2)

    assert [m.progress_ref_s for m in found.meters] == pytest.approx([1000.0, 999.9])


def test_spinning_takes_the_time_of_the_holder():
    """On one core the holder gets half of it, and the one that spins the other half."""
    found = outcome(doing(2, lock=Lock(0.0, 0.1)), 1000.0, slow=1)

    assert found.speed == pytest.approx(0.5 / 2, rel=1e-3)


def test_work_under_a_lock_ends():
    """20 s of work each, half of it under the lock: they collide once, for 0.1 s."""
    found = outcome(doing(2, lock=Lock(0.1, 0.1), work_ref_s=20.0), 100.0, slow=2)

    assert found.completion_s == pytest.approx(20.1)


@pytest.mark.parametrize(("spins", "busy_s"), [(False, 25.0), (True, 49.95)])
def test_who_waits_at_a_barrier_sleeps_or_spins(spins, busy_s):
    """50 s of work on each of a fast and a slow core, in step: the fast one is done in half.

    After the last barrier nobody waits.
    """
    made = doing(2, work_ref_s=50.0, barrier_ref_s=0.1, spins=spins)
    one = scenario(made, duration_s=100.0, policy="pinned")

    found = run(one)

    assert found.vms["vm"].completion_s == pytest.approx(50.0)
    assert found.fast_idle_ratio == pytest.approx(1.0 - busy_s / 100.0)


def test_spinning_slot_by_slot():
    """A hypervisor's scheduler takes both for running: nothing changes."""
    results = [
        slots.run(
            scenario(doing(2, barrier_ref_s=0.1, spins=spins), guest("b"), duration_s=20.0),
            load_policy("credit"),
        )
        .vms["vm"]
        .progress_refcores
        for spins in (False, True)
    ]

    assert results[0] == pytest.approx(results[1], rel=0.02)


@pytest.mark.parametrize(("llc", "lost_s"), [([0, 1], 0.1), ([0, 0], 0.0)])
def test_a_move_to_another_cache_costs_its_refill(llc, lost_s):
    """1 GB at 10 GB/s, every second, on cores of one speed."""
    made = doing(working_set_bytes=1e9)
    host = SimHost(topology(fast=0, slow=2, llc=llc), (made,))
    for second in range(100):
        step = Step(pcpus=frozenset({second % 2}))
        host.apply(Changes((Change(("vm", 0), (step,)),)))
        host.advance(second + 1.0)
        if second == 0:
            first = host.meters("vm")[0].progress_ref_s

    moved_s = host.meters("vm")[0].progress_ref_s - first
    assert moved_s == pytest.approx(99 * (1.0 - lost_s))
    assert sum(host.meters("vm")[0].run_s) == pytest.approx(100.0)


def test_a_refill_delays_the_end_of_work():
    """Exactly by the time it takes at the share of the core that the vCPU has."""
    made = doing(working_set_bytes=1e9, work_ref_s=5.0)
    host = SimHost(
        topology(fast=0, slow=2, llc=[0, 1]),
        (made, guest("other")),
        machine=Machine(memory_bytes_s=2e9),
    )
    host.advance(1.0)
    here = host.observe().domains[0].vcpus[0].last_pcpu
    host.apply(Changes((Change(("vm", 0), (Step(pcpus=frozenset({1 - here})),)),)))
    other = Change(("other", 0), (Step(pcpus=frozenset({1 - here})),))
    host.apply(Changes((other,)))
    host.advance(100.0)

    # 1 s alone, then 0.5 s of refill and 4 s of work on half of a core.
    assert host.outcome("vm").completion_s == pytest.approx(1.0 + 2 * (0.5 + 4.0))


def test_what_a_policy_pays_for_moving():
    """Throughput falls by the refill at the speed of where each move goes, and by nothing else."""
    sets = [
        scenario(
            doing(name="a", working_set_bytes=size),
            doing(name="b", working_set_bytes=size),
            duration_s=600.0,
            policy="amp-fair",
            llc=[0, 1],
        )
        for size in (0.0, 2e9)
    ]
    free, paid = (run(made) for made in sets)

    assert paid.cross_llc_migrations == free.cross_llc_migrations > 100
    # Two at a time change places, so half of the moves are to the fast core.
    lost_ref_s = paid.cross_llc_migrations * 0.2 * (2.0 + 1.0) / 2
    assert 2 * 600.0 * (free.throughput - paid.throughput) == pytest.approx(lost_ref_s, rel=0.02)
