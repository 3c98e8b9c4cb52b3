# SPDX-License-Identifier: Apache-2.0
"""The same flavor on two real hosts: placed, throttled, exported, and gone without a trace."""

import itertools
import statistics
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import metric, samples
from tests.e2e.track import at_once
from tools.cloud.layout import FAST, HOSTS
from tools.cloud.processes import until

REFCORES = 0.5
HALF = {"amp:pref_core": f"{REFCORES:g}"}
DIFFERENT, DIFFERENT_TIMES = 1.7, 5
"""How much more work a core does on the fast host, and how often that is measured until it does."""


def measure(processes, windows, window_s=1.0):
    """CPU seconds and rounds of work of each process a second, in each window."""
    seen = []
    with at_once():
        for left in reversed(range(windows + 1)):
            seen.append([(time.monotonic(), p.cpu_s(), p.rounds()) for p in processes])
            time.sleep(window_s if left else 0.0)
    return [
        [
            ((c - b) / (t - s), (r - q) / (t - s))
            for (s, b, q), (t, c, r) in zip(before, after, strict=True)
        ]
        for before, after in itertools.pairwise(seen)
    ]


def test_the_same_flavor_delivers_the_same_on_both_hosts(cloud, image, speeds, figure):
    """Half a reference core, in CPU time by the coefficient and in work that the guests count.

    The cores of this machine drift: what a second of CPU time is worth on each is read from guests
    without a booking that run beside at the same time.
    """
    free, half = cloud.flavor("free"), cloud.flavor("half", HALF)
    unbooked = [cloud.boot(image, free, host).process() for host in HOSTS]
    # What else runs on this machine may slow its fast core down for a while, or its slow core less.
    for _ in range(DIFFERENT_TIMES):
        without = [w[0][1] / w[1][1] for w in measure(unbooked, 4)]
        if statistics.median(without) > DIFFERENT:
            break
    servers = [cloud.boot(image, half, host) for host in HOSTS]
    booked = [server.process() for server in servers]
    time.sleep(1)

    windows = measure([*booked, *unbooked], 10)

    delivered = [
        [cores * speeds[h.name] for (cores, _), h in zip(w, HOSTS, strict=False)] for w in windows
    ]
    # What each booked guest did, over what its CPU time by the coefficient was worth just then.
    worth = [[rounds / cores for cores, rounds in w] for w in windows]
    drift = statistics.median(w[2] / w[3] for w in worth) / speeds[HOSTS[0].name]
    work = statistics.median(w[0][1] / w[1][1] for w in windows) / drift
    figure(f"coefficient of the fast core: {speeds['fast']:.3f} (amp-nova calibrate)")
    figure(f"unbooked guests, work fast over slow: {statistics.median(without):.3f}")
    figure(f"amp:pref_core={REFCORES:g}, work fast over slow: {work:.3f}")
    for i, host in enumerate(HOSTS):
        ratios = sorted(d[i] / REFCORES for d in delivered)
        figure(
            f"delivered over booked on {host.name}, 1 s windows: median "
            f"{statistics.median(ratios):.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f}"
        )
        assert statistics.median(ratios) == pytest.approx(1, abs=0.03)
        assert ratios[0] > 0.9
        assert ratios[-1] < 1.1
    assert statistics.median(without) > DIFFERENT
    # Within what a guest loses that is stopped and resumed 50 times a second, more at lower shares.
    assert work == pytest.approx(1, abs=0.15)
    for server, host in zip(servers, HOSTS, strict=True):
        ratio = metric(host, "amp_vcpu_delivered_ratio", resource=server.id)
        assert ratio == pytest.approx(1, abs=0.05)
        assert metric(host, "amp_vcpu_booked_refcores", resource=server.id) == REFCORES


def test_a_deleted_server_leaves_no_trace(cloud, image):
    """No process, no cgroup, no series and no allocation; the neighbour has its own still."""
    half = cloud.flavor("half", HALF)
    gone, stays = cloud.boot(image, half, FAST), cloud.boot(image, half, FAST)
    process, neighbour = gone.process(), stays.process()
    until(lambda: process.quota_cores() and neighbour.quota_cores(), "the limits", 5)
    until(lambda: metric(FAST, "amp_vcpu_booked_refcores", resource=gone.id), "its series", 5)
    assert gone.allocations()
    domain = process.group.parent
    assert domain.is_dir()

    gone.delete()

    assert not Path(f"/proc/{process.pid}").exists()
    assert not domain.exists()
    assert not gone.allocations()
    left = [s for s in samples(FAST) if s[1].get("resource") == gone.id]
    until(lambda: not any(s[1].get("resource") == gone.id for s in samples(FAST)), str(left), 3)
    assert metric(FAST, "amp_vcpu_booked_refcores", resource=stays.id) == REFCORES
    assert neighbour.quota_cores() is not None
