"""Guests that wait for I/O and for requests, against closed forms."""

import math

import pytest

from amp_nova.plugins import load_policy
from amp_nova.sim.host import SimHost
from amp_nova.sim.programs import percentile
from amp_nova.sim.run import run
from amp_nova.sim.scenarios.programs import Io, Requests
from amp_nova.sim.scenarios.scenario import Guest
from amp_nova.sim.scenarios.workload import Phase, Workload
from amp_nova.sim.slots import run as slots
from tests.unit.sim.builders import guest, scenario, topology

BUSY = (Phase((1.0, 2.0)),)


def waiting(vcpus=1, specs=None, **program):
    """A guest that waits for I/O or requests."""
    made = guest(vcpus=vcpus, **(specs or {}))
    return Guest("vm", made.booking, Workload(BUSY, **program), made.specs)


def on_slow(made, duration_s, **more):
    """The result of that guest alone on slow cores."""
    one = scenario(made, duration_s=duration_s, fast=0, slow=len(made.booking.vcpus), **more)
    return run(one).vms["vm"]


def latencies_s(made, duration_s):
    """Those of its requests alone on slow cores, without an agent."""
    host = SimHost(topology(fast=0, slow=len(made.booking.vcpus)), (made,))
    host.advance(duration_s)
    return host.outcome("vm").latencies_s


@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("computing", [0.2e-9, 1e-9, 3e-9])
def test_time_per_byte(overlap, computing):
    """``max(a, b) + (1 - o) min(a, b)`` for a line of 1 GB/s."""
    found = on_slow(waiting(io=Io(computing, 1e9, overlap)), 200.0)

    byte_s = max(1e-9, computing) + (1.0 - overlap) * min(1e-9, computing)
    assert found.io_bytes_s == pytest.approx(1.0 / byte_s, rel=2e-3)
    assert found.combined_usage_ratio == pytest.approx((computing + 1e-9) / byte_s, rel=2e-3)


def test_every_vcpu_has_a_line_of_its_own():
    """Two of three vCPUs transfer, at different speeds; the third computes."""
    each = (
        Workload(BUSY, io=Io(0.5e-9, 1e9)),
        Workload(BUSY, io=Io(4e-9, 1e9)),
        Workload(BUSY),
    )
    made = Guest("vm", guest(vcpus=3).booking, Workload(BUSY, vcpus=each), {})

    found = on_slow(made, 100.0)

    assert found.io_bytes_s == pytest.approx(1e9 + 0.25e9, rel=1e-3)
    assert found.progress_refcores == pytest.approx((0.5 + 1.0 + 1.0) / 3, rel=1e-3)


def test_latency_without_a_queue_is_the_service_time():
    """Two vCPUs take requests of 0.15 s in turn, which arrive every 0.1 s."""
    requests = Requests(10.0, 0.15, poisson=False, exponential=False)

    found = on_slow(waiting(2, requests=requests), 100.0)

    assert [found.latency_p50_s, found.latency_p99_s] == pytest.approx([0.15, 0.15])
    assert found.requests_completed == 998


def test_latency_grows_where_requests_arrive_faster_than_they_are_served():
    """Request k arrives at 0.1 k and ends at 0.1 + 0.2 k: the 250th of 499 has waited 25 s."""
    found = on_slow(waiting(requests=Requests(10.0, 0.2, poisson=False, exponential=False)), 100.0)

    assert found.requests_completed == 499
    assert found.latency_p50_s == pytest.approx(25.1)
    assert found.latency_p99_s == pytest.approx(0.1 + 0.1 * math.ceil(0.99 * 499))


@pytest.mark.parametrize("per_s", [2.0, 5.0])
def test_a_queue_with_one_server_is_m_m_1(per_s):
    """Latency is exponential with the rate at which service is faster than arrivals."""
    found = latencies_s(waiting(requests=Requests(per_s, 0.1)), 6000.0)

    for ratio in (0.5, 0.95, 0.99):
        expected = -math.log(1.0 - ratio) / (10.0 - per_s)
        assert percentile(found, ratio) == pytest.approx(expected, rel=0.08)


def test_two_servers_are_m_m_2():
    """Half of the time both are busy: the mean is service / (1 - u^2)."""
    found = latencies_s(waiting(2, requests=Requests(10.0, 0.1)), 3000.0)

    assert sum(found) / len(found) == pytest.approx(0.1 / (1.0 - 0.5**2), rel=0.03)


def test_a_booking_that_halves_the_speed_shows_in_the_tail():
    """The same arrivals: at half the speed M/M/1 has 10 - 2 and 5 - 2 to spare, 8 / 3 as slow."""
    whole = on_slow(waiting(requests=Requests(2.0, 0.1)), 3000.0)
    half = on_slow(waiting(requests=Requests(2.0, 0.1), specs={"pref_core": "0.5"}), 3000.0)

    assert abs(half.requests_completed - whole.requests_completed) < 3
    assert half.latency_p99_s / whole.latency_p99_s == pytest.approx(8 / 3, rel=0.15)


def test_no_request_no_latency():
    """None has ended in the first second."""
    found = on_slow(waiting(requests=Requests(0.5, 0.1, poisson=False)), 1.0)

    assert (found.requests_completed, found.latency_p50_s, found.latency_p99_s) == (0, None, None)


def test_percentiles_are_nearest_ranks():
    """The least value that so many do not exceed."""
    values = [float(n) for n in range(1, 101)]

    assert [percentile(values, r) for r in (0.5, 0.95, 0.99)] == [50.0, 95.0, 99.0]
    assert percentile([3.0], 0.5) == 3.0
    assert percentile([], 0.5) is None


def test_who_waits_for_io_leaves_its_core_to_others():
    """Slot by slot: 0.05 of every 0.1 s is computed, the other guest has the other half."""
    sender = Guest("io", guest().booking, Workload(BUSY, io=Io(1e-9, 1e9, 0.0)), {})
    made = scenario(sender, guest("cpu"), duration_s=60.0, fast=0, slow=1, policy="credit")

    found = slots.run(made, load_policy("credit")).vms

    assert found["io"].progress_refcores + found["cpu"].progress_refcores == pytest.approx(1.0)
    assert found["io"].progress_refcores > 0.3


@pytest.mark.parametrize("program", [{"io": Io(1e-9, 1e9)}, {"requests": Requests(50.0, 0.01)}])
def test_a_removed_guest_does_nothing_more(program):
    """Its core is free at once."""
    host = SimHost(topology(fast=0, slow=1), (waiting(**program), guest("other")))
    host.advance(2.0)
    host.remove("vm")
    before = host.meters("other")[0].progress_ref_s
    host.advance(10.0)

    assert host.meters("other")[0].progress_ref_s - before == pytest.approx(8.0)
