# SPDX-License-Identifier: Apache-2.0
"""What guests wait for and what their vCPUs do, against closed forms."""

import math
from dataclasses import replace

import pytest

from amp_nova.plugins import load_policy
from amp_nova.profiling.io_overlap import IoUse, least_kept_ratio
from amp_nova_lab.host import SimHost
from amp_nova_lab.programs import percentile
from amp_nova_lab.run import run
from amp_nova_lab.scenarios.workload import Io, Phase, Requests, Workload
from amp_nova_lab.slots import run as slots
from tests.unit.lab.builders import guest, scenario, topology

BUSY = (Phase((1.0, 2.0)),)


def doing(vcpus=1, name="vm", specs=None, **workload):
    """A guest that does this."""
    return replace(guest(name, vcpus, **(specs or {})), workload=Workload(BUSY, **workload))


def differing(*each):
    """A guest of one vCPU for each workload."""
    return replace(doing(len(each)), workload=Workload(BUSY, vcpus=each))


def outcome(made, duration_s, slow=0, fast=0):
    """What a guest did alone, without an agent; by default on a slow core for each vCPU."""
    host = SimHost(topology(fast=fast, slow=slow or len(made.booking.vcpus)), (made,))
    host.advance(duration_s)
    return host.outcome("vm")


def on_slow(made, duration_s):
    """The result of a guest alone on slow cores."""
    one = scenario(made, duration_s=duration_s, fast=0, slow=len(made.booking.vcpus))
    return run(one).vms["vm"]


def test_barriers_without_work_for_anybody_cost_no_time():
    """Two of three barriers are passed at once."""
    made = differing(Workload(BUSY, 5.0, (0.0, 0.0, 0.1)), Workload(BUSY, 5.0, (0.0, 0.0, 0.1)))

    assert outcome(made, 10.0).completion_s == pytest.approx(5.0)


def test_a_vcpu_that_is_done_holds_nobody_up():
    """The other one goes on alone."""
    made = differing(Workload(BUSY, 1.0, 0.5), Workload(BUSY, 4.0, 0.5))

    assert outcome(made, 10.0).completion_s == pytest.approx(4.0)


@pytest.mark.parametrize(("spins", "busy_s"), [(False, 25.0), (True, 49.95)])
def test_who_waits_at_a_barrier_sleeps_or_spins(spins, busy_s):
    """50 s of work on each of a fast and a slow core, in step: the fast one is done in half.

    After the last barrier nobody waits.
    """
    made = doing(2, work_ref_s=50.0, barrier_ref_s=0.1, spins=spins)
    found = run(scenario(made, duration_s=100.0, policy="pinned"))

    assert found.vms["vm"].completion_s == pytest.approx(50.0)
    assert found.fast_idle_ratio == pytest.approx(1.0 - busy_s / 100.0)


def test_spinning_slot_by_slot():
    """A hypervisor's scheduler takes both for running: nothing changes."""

    def progress(spins):
        made = scenario(doing(2, barrier_ref_s=0.1, spins=spins), guest("b"), duration_s=20.0)
        return slots.run(made, load_policy("credit")).vms["vm"].progress_refcores

    assert progress(False) == pytest.approx(progress(True), rel=0.02)


@pytest.mark.parametrize("computing", [0.2e-9, 1e-9, 3e-9])
def test_time_per_byte(computing):
    """``max(a, b) + (1 - o) min(a, b)`` for a line of 1 GB/s; o = 0 and 1: ``transfers.yaml``."""
    found = on_slow(doing(io=Io(computing, 1e9, overlap_ratio=0.5)), 60.0)

    byte_s = max(1e-9, computing) + 0.5 * min(1e-9, computing)
    assert found.io_bytes_s == pytest.approx(1.0 / byte_s, rel=2e-3)
    assert found.combined_usage_ratio == pytest.approx((computing + 1e-9) / byte_s, rel=2e-3)


@pytest.mark.parametrize(
    ("overlap", "computing"),
    [(0.0, 0.2e-9), (0.0, 3e-9), (0.5, 0.2e-9), (1.0, 3e-9)],
)
def test_slow_cores_keep_at_least_what_the_agent_says(overlap, computing):
    """What it says from the CPU time on a fast core; without overlap it is exactly that."""
    made = doing(io=Io(computing, 1e9, overlap))
    fast, slow = (outcome(replace(made, start_on=t), 100.0, fast=1) for t in ("fast", "slow"))
    used = IoUse(sum(fast.meters[0].run_s) / 100.0, None, 0.0)

    kept, least = slow.speed / fast.speed, least_kept_ratio(used, 2.0)

    assert kept >= least - 1e-3
    if not overlap:
        assert kept == pytest.approx(least, rel=1e-3)


def test_every_vcpu_has_a_line_of_its_own():
    """Two of three vCPUs transfer, at different speeds; the third computes."""
    each = (Workload(BUSY, io=Io(0.5e-9, 1e9)), Workload(BUSY, io=Io(4e-9, 1e9)), Workload(BUSY))

    found = on_slow(differing(*each), 100.0)

    assert found.io_bytes_s == pytest.approx(1e9 + 0.25e9, rel=1e-3)
    assert found.progress_refcores == pytest.approx((0.5 + 1.0 + 1.0) / 3, rel=1e-3)


def test_latency_grows_where_requests_arrive_faster_than_they_are_served():
    """Request k arrives at 0.1 k and ends at 0.1 + 0.2 k: the 250th of 499 has waited 25 s."""
    found = on_slow(doing(requests=Requests(10.0, 0.2, arrivals="regular", service="fixed")), 100.0)

    assert found.requests_completed == 499
    assert found.latency_p50_s == pytest.approx(25.1)
    assert found.latency_p99_s == pytest.approx(0.1 + 0.1 * math.ceil(0.99 * 499))


def test_a_queue_with_one_server_is_m_m_1():
    """Latency is exponential with the rate at which service is faster than arrivals."""
    found = outcome(doing(requests=Requests(2.0, 0.1)), 6000.0).latencies_s

    for ratio in (0.5, 0.95, 0.99):
        expected = -math.log(1.0 - ratio) / (10.0 - 2.0)
        assert percentile(found, ratio) == pytest.approx(expected, rel=0.08)


def test_two_servers_are_m_m_2():
    """Half of the time both are busy: the mean is service / (1 - u^2)."""
    found = outcome(doing(2, requests=Requests(10.0, 0.1)), 1000.0).latencies_s

    assert sum(found) / len(found) == pytest.approx(0.1 / (1.0 - 0.5**2), rel=0.03)


def test_a_policy_makes_nobody_wait_where_cores_have_time_to_spare():
    """Six guests that sleep most of the time, on one fast and three slow cores."""

    def slowest_percent_s(policy):
        guests = [doing(name=f"vm{i}", requests=Requests(20.0, 0.02)) for i in range(6)]
        made = scenario(*guests, duration_s=120.0, policy=policy, fast=1, slow=3)
        found = run(made, load_policy(policy)).vms.values()
        return sum(vm.latency_p99_s for vm in found) / len(guests)

    none_s = slowest_percent_s("none")

    assert slowest_percent_s("acfs") <= 1.05 * none_s
    assert slowest_percent_s("amp-fair") <= 1.05 * none_s


def test_no_request_no_latency():
    """None has ended in the first second."""
    found = on_slow(doing(requests=Requests(0.5, 0.1, arrivals="regular")), 1.0)

    assert (found.requests_completed, found.latency_p50_s, found.latency_p99_s) == (0, None, None)


def test_who_waits_for_io_leaves_its_core_to_others():
    """Slot by slot: 0.05 of every 0.1 s is computed, the other guest has the other half."""
    sender = doing(name="io", io=Io(1e-9, 1e9, 0.0))
    made = scenario(sender, guest("cpu"), duration_s=60.0, fast=0, slow=1, policy="credit")

    found = slots.run(made, load_policy("credit")).vms

    assert found["io"].progress_refcores + found["cpu"].progress_refcores == pytest.approx(1.0)
    assert found["io"].progress_refcores > 0.3


@pytest.mark.parametrize("program", [{"io": Io(1e-9, 1e9)}, {"requests": Requests(50.0, 0.01)}])
def test_a_removed_guest_does_nothing_more(program):
    """Its core is free at once."""
    host = SimHost(topology(fast=0, slow=1), (doing(**program), guest("other")))
    host.advance(2.0)
    host.remove("vm")
    before = host.meters("other")[0].progress_ref_s
    host.advance(10.0)

    assert host.meters("other")[0].progress_ref_s - before == pytest.approx(8.0)
