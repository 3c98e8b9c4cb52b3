# SPDX-License-Identifier: Apache-2.0
"""What guests wait for and what their vCPUs do, against closed forms."""

import math
from dataclasses import replace

import pytest

from amp_nova.profiling.io_overlap import IoUse, least_kept_ratio
from amp_nova_lab.host import SimHost
from amp_nova_lab.programs import percentile
from amp_nova_lab.run import run
from amp_nova_lab.scenarios.workload import Io, Phase, Requests, Workload
from tests.unit.lab.builders import guest, scenario, topology

BUSY = (Phase((1.0, 2.0)),)


def doing(vcpus=1, name="vm", specs=None, **workload):
    """A guest that does this."""
    return replace(guest(name, vcpus, **(specs or {})), workload=Workload(BUSY, **workload))


def outcome(made, duration_s, slow=0, fast=0):
    """What a guest did alone, without an agent; by default on a slow core for each vCPU."""
    host = SimHost(topology(fast=fast, slow=slow or len(made.booking.vcpus)), (made,))
    host.advance(duration_s)
    return host.outcome("vm")


def on_slow(made, duration_s):
    """The result of a guest alone on slow cores."""
    one = scenario(made, duration_s=duration_s, fast=0, slow=len(made.booking.vcpus))
    return run(one).vms["vm"]


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


def test_no_request_no_latency():
    """None has ended in the first second."""
    found = on_slow(doing(requests=Requests(0.5, 0.1, arrivals="regular")), 1.0)

    assert (found.requests_completed, found.latency_p50_s, found.latency_p99_s) == (0, None, None)


@pytest.mark.parametrize("program", [{"io": Io(1e-9, 1e9)}, {"requests": Requests(50.0, 0.01)}])
def test_a_removed_guest_does_nothing_more(program):
    """Its core is free at once."""
    host = SimHost(topology(fast=0, slow=1), (doing(**program), guest("other")))
    host.advance(2.0)
    host.remove("vm")
    before = host.meters("other")[0].progress_ref_s
    host.advance(10.0)

    assert host.meters("other")[0].progress_ref_s - before == pytest.approx(8.0)
