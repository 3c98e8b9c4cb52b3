# SPDX-License-Identifier: Apache-2.0
"""Bookings in instructions per second: counted on both hosts, kept there and through moves.

What was delivered is counted by the guests themselves, in rounds of a known length; the agent
goes by QEMU's plugin.
"""

import statistics
import time

import pytest

from tests.e2e.conftest import metric
from tests.e2e.test_bookings import measure
from tests.e2e.track import Track
from tests.guests.guest import INSTRUCTIONS_PER_ROUND
from tools.cloud.client import openstack
from tools.cloud.layout import FAST, HOSTS, SLOW
from tools.cloud.processes import until

FLAVOR, IPS = "instructions", 300e6


def booked(ratio):
    """Delivered over booked, from rounds per second."""
    return ratio * INSTRUCTIONS_PER_ROUND / IPS


def enforced(server):
    """The server's process, once its agent governs it by what it counts."""
    process = server.process()
    until(lambda: process.quota_cores() is not None, "the limit", 10)
    time.sleep(2)
    return process


def test_the_same_instructions_per_second_on_both_hosts(cloud, image, figure):
    """Whatever the core is worth: booked, counted, exported and kept within a few percent."""
    servers = [cloud.boot(image, FLAVOR, host) for host in HOSTS]
    processes = [enforced(server) for server in servers]

    windows = measure(processes, 10)

    for i, (server, host) in enumerate(zip(servers, HOSTS, strict=True)):
        ratios = [booked(w[i][1]) for w in windows]
        figure(
            f"amp:ips={IPS / 1e6:g}M on {host.name}, delivered over booked by second: "
            + "  ".join(f"{ratio:.3f}" for ratio in ratios)
        )
        assert statistics.fmean(ratios) == pytest.approx(1, abs=0.05)
        assert metric(host, "amp_vcpu_booked_ips", resource=server.id) == IPS
        exported = metric(host, "amp_vcpu_delivered_ips", resource=server.id)
        assert exported == pytest.approx(IPS, rel=0.2)
        assert metric(host, "amp_counters_info", source="tcg") == 1
    fast, slow = (statistics.fmean(w[i][0] for w in windows) for i in range(2))
    assert fast < slow  # of the CPU time; the limit of a moment has corrections in it


def test_a_live_migration_there_and_back_keeps_the_instructions(cloud, image, figure):
    """Counting starts anew on arrival; from the second after it the booking is kept."""
    server = cloud.boot(image, FLAVOR, FAST)
    enforced(server)
    for source, destination in ((FAST, SLOW), (SLOW, FAST)):
        with Track(server) as track:
            time.sleep(3)
            server.act("os-migrateLive", {"host": destination.name, "block_migration": "auto"})
            time.sleep(6)
        assert server.host == destination
        arrived_s = track.arrived_s(destination)
        windows = track.windows(arrived_s, range(-3, 6), dict.fromkeys((FAST.name, SLOW.name), 1))
        ratios = {w.number: booked(w.rounds) for w in windows}
        figure(
            f"amp:ips={IPS / 1e6:g}M, live migration {source.name} to {destination.name}, "
            "delivered over booked by second, 0 begins with the arrival: "
            + "  ".join(f"{number}: {ratio:.3f}" for number, ratio in ratios.items())
        )
        assert track.unlimited_s(destination) == 0
        after = [ratio for number, ratio in ratios.items() if number >= 1]
        assert statistics.fmean(after) == pytest.approx(1, abs=0.1)
        assert max(ratios.values()) < 1.5


def test_instructions_beyond_every_core_are_refused(cloud, image):
    """The scheduler knows what a core retires of such guests."""
    flavor = cloud.flavor("too many", {"amp:ips": "900G"})

    server = cloud.create(image, flavor).wait("ERROR")

    assert "No valid host" in server.show()["fault"]["message"]


def test_the_client_shows_what_is_booked_and_counted(cloud, image):
    """``openstack amp server show`` has the claim, and what Prometheus scraped."""
    server = cloud.boot(image, FLAVOR, SLOW)
    enforced(server)
    time.sleep(5)  # scrapes are 2 s apart

    shown = openstack("amp", "server", "show", server.id, "-f", "value", "-c", "booking")
    ratio = openstack(
        "amp", "server", "show", server.id, "-f", "value", "-c", "delivered_ratio_by_vcpu"
    )

    assert shown == "300M Ips"
    assert "'0'" in ratio
