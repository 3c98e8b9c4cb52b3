# SPDX-License-Identifier: Apache-2.0
"""What a server is told, from the samples of its series."""

import time

import msgspec
import pytest

from amp_nova.tenant.figures import Series, figures
from tests.support.tenant import coefficient, half, series, shortfall


def told(samples, coefficients=()):
    """The figures of series as Prometheus writes them."""
    found, speeds = msgspec.convert([samples, list(coefficients)], list[list[Series]])
    return figures(found, speeds)


def test_a_server_that_is_always_busy():
    """Means over the window, the booking, and the core type that it is on."""
    at_s = time.time()
    known = told(half(until_s=at_s), [coefficient(2.0, "fast"), coefficient(1.0, "slow")])

    assert known == {
        "measured_s": at_s,
        "window_s": 300.0,
        "booked_refcores": 0.5,
        "delivered_refcores": 0.5,
        "last_delivered_refcores": 0.499,
        "throttled_vcpus": 0.75,
        "current_core_type": "fast",
        "coefficient": 2.0,
    }


def test_what_was_missed_is_by_neighbours_or_by_the_host():
    """In reference cores, on average; a busy sibling is a neighbour."""
    lost = [("contention", 0.5), ("smt", 0.1), ("core_type", 0.2), ("throttle", 0.05)]

    known = told([*half(), *(shortfall(cause, amount) for cause, amount in lost)])

    assert known["missed_refcores_neighbours"] == pytest.approx(0.06)
    assert known["missed_refcores_host"] == pytest.approx(0.025)


def test_an_idle_server_is_not_limited():
    """It books, uses little, and misses nothing."""
    samples = half()
    samples[1] = series("instance_delivered_refcores", [0.01] * 31)
    samples[2] = series("instance_reference_cpu_seconds_total", [100 + 0.1 * i for i in range(31)])
    samples[4] = series("instance_throttled_seconds_total", [150.0] * 31)

    known = told([*samples, shortfall("throttle", 0), shortfall("contention", 0)])

    assert known["throttled_vcpus"] == 0
    assert known["delivered_refcores"] == pytest.approx(0.01)
    assert (known["missed_refcores_neighbours"], known["missed_refcores_host"]) == (0, 0)


@pytest.mark.parametrize("on_arrival", [1, 2], ids=["one scrape", "two scrapes"])
def test_after_a_live_migration(on_arrival):
    """The core type is that of the new host at its first scrape; the mean has no hole."""
    now_s = time.time()
    left = half(steps=20, until_s=now_s - 10.0 * on_arrival)
    there = half("compute-2:9178", "slow", 1.0, steps=on_arrival - 1, until_s=now_s, start=4.0)
    speeds = [coefficient(2.0, "fast"), coefficient(1.0, "slow", "compute-2:9178")]

    known = told([*there, *left], speeds)

    assert known["measured_s"] == now_s
    assert (known["current_core_type"], known["coefficient"]) == ("slow", 1.0)
    assert known["delivered_refcores"] == pytest.approx(0.5, rel=1e-6)
    assert known["window_s"] == 200 + 10 * (on_arrival - 1)


def test_there_and_back_again():
    """The time elsewhere is not counted twice, and the counters that begin again do not fall."""
    now_s = time.time()
    here = half(steps=10, until_s=now_s - 200.0, start=500.0)
    again = half(steps=5, until_s=now_s, start=0.0)
    for before, after in zip(here, again, strict=True):
        before["values"] += after["values"]
    away = half("compute-2:9178", "slow", 1.0, steps=10, until_s=now_s - 70.0, start=3.0)

    known = told([*away, *here])

    assert known["window_s"] == 250
    assert known["delivered_refcores"] == pytest.approx(0.5)
    assert known["current_core_type"] == "fast"


def test_an_agent_that_was_restarted_counts_from_0():
    """What it counted since is added."""
    counts = [100.0, 105.0, 110.0, 2.0, 7.0]

    known = told([series("instance_reference_cpu_seconds_total", counts)])

    assert known["delivered_refcores"] == pytest.approx((5 + 5 + 2 + 5) / 40)


def test_a_target_that_two_jobs_scrape_counts_once():
    """Prometheus in pairs, or an overlapping job."""
    twice = [s | {"metric": s["metric"] | {"job": "amp-nova-2"}} for s in half()]

    assert told([*half(), *twice])["delivered_refcores"] == 0.5


def test_a_booking_in_instructions():
    """In its own unit; what is missing stays in reference cores."""
    samples = [
        series("instance_booked_ips", [1e9] * 31),
        series("instance_delivered_ips", [1e9] * 15 + [2e8] * 16),
        *half()[2:],
    ]

    known = told([*samples, shortfall("throttle", 0)])

    assert (known["booked_ips"], known["last_delivered_ips"]) == (1e9, 2e8)
    assert known["missed_refcores_host"] == 0


def test_best_effort_has_no_booking():
    """It is told what it got, and on which core type."""
    known = told(half()[2:4], [coefficient(2.0, "fast")])

    assert known.keys() == {
        "measured_s",
        "window_s",
        "delivered_refcores",
        "current_core_type",
        "coefficient",
    }


def test_nothing_is_invented():
    """No series, series without samples, and what is not a number."""
    assert told([]) == {}
    assert told([series("instance_booked_refcores", [])]) == {}
    assert told([series("instance_booked_refcores", ["NaN", "+Inf"])]) == {}
    last = told([series("instance_booked_refcores", [0.5])])
    assert last.keys() == {"measured_s", "booked_refcores"}
    known = told(half(), [coefficient("NaN", "fast")])
    assert "coefficient" not in known
    with pytest.raises(ValueError, match="not convert"):
        told([series("instance_booked_refcores", ["many"])])


def test_no_figure_is_about_another_series():
    """Whatever else Prometheus returns, no name of a host or a neighbour is told."""
    host = "secret-host:9178"
    foreign = series("instance_info", [1], host, flavor="secret")

    known = told([*half(host), foreign], [coefficient(2.0, "fast", host)])

    assert "secret" not in repr(known)
