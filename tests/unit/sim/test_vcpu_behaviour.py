"""vCPUs of one guest that differ: uneven threads, serial sections, a hot thread that migrates."""

import pytest

from amp_nova.sim.host import SimHost
from amp_nova.sim.run import run
from amp_nova.sim.scenarios.workload import Phase, Workload
from tests.unit.sim.builders import guest, scenario, topology

BUSY = (Phase((1.0, 2.0)),)


def differing(*each, vcpus=None, start_on=None):
    """A guest of one vCPU for each workload, or of more, which do as the last one."""
    made = guest(vcpus=vcpus or len(each), start_on=start_on)
    return type(made)(made.name, made.booking, Workload(BUSY, vcpus=each), {}, start_on)


def outcome(made, until_s, **host):
    """What it did by that time, without an agent."""
    alone = SimHost(topology(**host), (made,))
    alone.advance(until_s)
    return alone.outcome("vm")


def test_every_vcpu_has_its_own_speed_and_demand():
    """On slow cores: 1, a quarter of the time, and the last entry again for the third vCPU."""
    made = differing(Workload(BUSY), Workload((Phase((1.0, 1.5), 0.25),)), vcpus=3)

    found = outcome(made, 100.0, fast=0, slow=3)

    assert [m.progress_ref_s for m in found.meters] == pytest.approx([100.0, 25.0, 25.0], rel=1e-3)
    assert found.speed == pytest.approx(0.5, rel=1e-3)


def test_uneven_threads_wait_for_the_longest():
    """0.2 s and 0.1 s of work before each barrier: 0.3 s of work in every 0.2 s."""
    made = differing(
        Workload(BUSY, barrier_ref_s=0.2, work_ref_s=20.0),
        Workload(BUSY, barrier_ref_s=0.1, work_ref_s=10.0),
    )

    found = outcome(made, 100.0, fast=0, slow=2)

    assert found.completion_s == pytest.approx(20.0)
    assert [sum(m.run_s) for m in found.meters] == pytest.approx([20.0, 10.0])
    assert found.speed == pytest.approx(0.75)
    assert found.alone == pytest.approx(0.75)


def test_serial_sections_follow_amdahl():
    """A tenth of the work is serial: four cores are 1 / (0.1 + 0.9 / 4) times as fast as one."""
    serial, parallel = 0.1, 0.9 / 4
    first = Workload(BUSY, 10 * (serial + parallel), (serial, parallel))
    others = Workload(BUSY, 10 * parallel, (0.0, parallel))
    made = differing(first, others, vcpus=4)

    found = outcome(made, 100.0, fast=0, slow=4)

    assert 10.0 / found.completion_s == pytest.approx(1.0 / (0.1 + 0.9 / 4))


def test_alone_the_serial_section_has_the_fast_core():
    """0.1 s of work at speed 2, then four vCPUs take turns on one fast and three slow cores."""
    made = differing(
        Workload(BUSY, barrier_ref_s=(0.1, 0.1)),
        Workload(BUSY, barrier_ref_s=(0.0, 0.1)),
        vcpus=4,
    )
    round_s = 0.1 / 2 + 0.1 / ((2 + 3) / 4)

    found = outcome(made, 1000 * round_s, fast=1, slow=3)

    assert found.alone == pytest.approx((0.2 + 3 * 0.1) / 4 / round_s)
    assert found.alone_slowest == pytest.approx((0.2 + 3 * 0.1) / 4 / 0.2, rel=1e-3)


def test_barriers_without_work_for_anybody_cost_no_time():
    """Two of three barriers are passed at once."""
    made = differing(
        Workload(BUSY, 5.0, (0.0, 0.0, 0.1)),
        Workload(BUSY, 5.0, (0.0, 0.0, 0.1)),
    )

    assert outcome(made, 10.0, fast=0, slow=2).completion_s == pytest.approx(5.0)


def test_a_vcpu_that_is_done_holds_nobody_up():
    """The other one goes on alone."""
    made = differing(Workload(BUSY, 1.0, 0.5), Workload(BUSY, 4.0, 0.5))

    assert outcome(made, 10.0, fast=0, slow=2).completion_s == pytest.approx(4.0)


def test_policies_follow_a_hot_thread():
    """Two vCPUs are busy in turn for 50 s; whoever is busy has the fast core within two decisions.

    The fast core is free whenever the other sleeps, so only the time before a decision is lost.
    """
    hot, cold = Phase((1.0, 2.0), 1.0, 50.0), Phase((1.0, 2.0), 0.0, 50.0)
    made = differing(Workload((hot, cold)), Workload((cold, hot)))

    found = run(scenario(made, duration_s=1000.0, policy="amp-vcpu")).vms["vm"]

    assert found.fast_share > 1.0 - 5.0 / 50.0
    assert found.slowdown == pytest.approx(1.0, abs=0.06)


def test_behaviour_per_vcpu_is_repeatable():
    """Where vCPUs start in their cycles depends on the seed only."""
    made = differing(Workload((Phase((1.0, 2.0), 0.3),)), Workload((Phase((1.0, 2.0), 0.6),)))
    runs = [run(scenario(made, policy="amp-vm", seed=seed)) for seed in (1, 1)]

    assert runs[0] == runs[1]
