# SPDX-License-Identifier: Apache-2.0
"""A promise that clouds make: 20 % of a core on a crowded host (doc/source/admin/scs.rst)."""

import json
import time

import pytest

from tests.e2e.conftest import metric, samples
from tests.e2e.test_bookings import measure
from tools.cloud.client import openstack
from tools.cloud.layout import FAST, SLOW
from tools.cloud.processes import until

SHARED, CROWDED = "SCS-1V-1", "SCS-1L-1"
PROMISED = 0.2
FLOOR = 0.01
"""What a server without a promise gets of the core, however full it is."""
EACH = 4
"""As many servers of either flavor are on the host's one core."""
WINDOW_S, WINDOWS = 10.0, 7
"""More than a minute, which is what the service level counts."""


def cores(servers, windows):
    """CPU time over wall time of each server, in each window."""
    processes = [server.process() for server in servers]
    time.sleep(3)  # the agent has seen all of them
    found = measure(processes, windows, WINDOW_S)
    return [[window[i][0] for window in found] for i in range(len(processes))]


def crowd(cloud, image):
    """Four servers of each flavor on the slow host, those with the promise first.

    The others boot first: later they may get no time to boot in.
    """
    crowded = [cloud.boot(image, CROWDED, SLOW) for _ in range(EACH)]
    for server in crowded:
        server.process()  # its guest counts
    return [*(cloud.boot(image, SHARED, SLOW) for _ in range(EACH)), *crowded]


def minutes(suffix, **labels):
    """Minutes of the service level that the agent counted, by server."""
    return {
        its["resource"]: value
        for name, its, value in samples(SLOW)
        if name == f"amp_instance_delivered_ratio{suffix}" and labels.items() <= its.items()
    }


def figures(figure, title, found):
    """Say what the servers got."""
    for name, windows in ((SHARED, found[:EACH]), (CROWDED, found[EACH:])):
        each = sorted(sum(w) / len(w) for w in windows)
        worst = min(min(w) for w in windows)
        figure(
            f"{EACH} {name}, {title}: {each[0]:.3f} to {each[-1]:.3f} of the core each, "
            f"worst window of {WINDOW_S:g} s: {worst:.3f}"
        )


@pytest.mark.timeout(900)
def test_shared_cores_get_a_fifth_of_a_core_on_a_crowded_host(cloud, image, figure):
    """Unbooked they get an eighth; booked by one command a fifth and more, and no fifth server."""
    for name, cpu_type in ((SHARED, "shared-core"), (CROWDED, "crowded-core")):
        cloud.flavor(name, {"scs:cpu-type": cpu_type})
        openstack("amp", "flavor", "unset", name, "--all")
    without = cores(crowd(cloud, image), 2)
    figures(figure, "not booked", without)
    cloud.clear()

    rows = json.loads(openstack("amp", "flavor", "scs", "-f", "json"))
    again = json.loads(openstack("amp", "flavor", "scs", "-f", "json"))
    servers = crowd(cloud, image)
    refused = cloud.create(image, SHARED, SLOW).wait("ERROR")
    got = cores(servers, WINDOWS)

    assert {row["Flavor"]: row["Result"] for row in rows} == {SHARED: "set", CROWDED: "unchanged"}
    assert {row["Result"] for row in again} == {"unchanged"}
    assert "No valid host" in refused.show()["fault"]["message"]
    figures(figure, "booked", got)
    assert max(sum(w) / len(w) for w in without) < PROMISED
    for windows in got[:EACH]:
        assert min(windows) >= PROMISED
    for windows in got[EACH:]:
        assert sum(windows) / len(windows) >= FLOOR
        assert min(windows) >= FLOOR / 2
    began_s = time.monotonic()
    servers[-1].act("os-migrateLive", {"host": FAST.name, "block_migration": "auto"}, timeout_s=240)
    took_s = time.monotonic() - began_s
    figure(f"live migration of a {CROWDED} away from the crowded host: {took_s:.0f} s")
    assert servers[-1].host == FAST
    shared = {server.id for server in servers[:EACH]}
    until(lambda: minutes("_count").keys() >= shared, "a minute of every server", 90)
    missed = minutes("_bucket", le="0.95")
    figure(f"minutes that missed the promise: {sum(missed.values()):g} of {len(shared)} or more")
    assert not any(missed[resource] for resource in shared)
    for server in servers[:EACH]:
        labels = {"resource": server.id, "cpu_type": "shared-core"}
        assert metric(SLOW, "amp_instance_scs_vcpus", **labels) == 1
