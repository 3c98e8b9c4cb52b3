# SPDX-License-Identifier: Apache-2.0
"""Placement claims: no capacity is given twice, however many schedulers decide at once."""

import json
import time
from collections import Counter

import pytest

from tests.e2e.conftest import metric, samples
from tools.cloud.client import openstack
from tools.cloud.layout import HOSTS, LOG, RESERVE_RATIO
from tools.cloud.processes import until

BOOTS = 50
REFCORES = 0.4
CLASS = "CUSTOM_AMP_MREFCORE"


def offered(host):
    """Total and claimed of the host's core type, as ``openstack resource provider`` shows them."""
    name = f"{host.name}_amp_{host.name}"
    (provider,) = json.loads(
        openstack("resource", "provider", "list", "--name", name, "-f", "json")
    )
    shown = [
        json.loads(openstack("resource", "provider", what, "show", provider["uuid"], *more))
        for what, more in (
            ("inventory", (CLASS, "-f", "json")),
            ("usage", ("-f", "json")),
        )
    ]
    usage = {row["resource_class"]: row["usage"] for row in shown[1]}
    return shown[0]["total"], usage[CLASS]


@pytest.mark.timeout(900)  # minutes pass until emulated guests have booted
def test_fifty_boots_through_two_schedulers_over_book_no_host(cloud, image, speeds, figure):
    """More is asked for than there is: what is full refuses, and both workers decide."""
    flavor = cloud.flavor("two-fifths")
    openstack("amp", "flavor", "set", flavor, f"amp:pref_core={REFCORES:g}")
    shown = json.loads(openstack("amp", "capacity", "show", flavor, "-f", "json"))
    before = (LOG / "nova-scheduler.log").read_text()
    began_s = time.monotonic()

    servers = [cloud.create(image, flavor) for _ in range(BOOTS)]

    def states():
        found = cloud.nova("get", "/servers/detail?limit=1000")["servers"]
        ours = {server.id for server in servers}
        return [s for s in found if s["id"] in ours and s["status"] in ("ACTIVE", "ERROR")]

    until(lambda: len(states()) == BOOTS, f"the {BOOTS} servers", 400)
    took_s = time.monotonic() - began_s
    active = [s for s in states() if s["status"] == "ACTIVE"]
    where = Counter(s["OS-EXT-SRV-ATTR:host"] for s in active)
    figure(
        f"{BOOTS} boots of {REFCORES:g} reference cores at once, in {took_s:.0f} s: "
        f"{dict(where)} active, {BOOTS - len(active)} refused; capacity show said {shown['fits']}"
    )
    for host in HOSTS:
        total, claimed = offered(host)
        assert claimed == round(where[host.name] * REFCORES * 1000)
        assert claimed <= (1 - RESERVE_RATIO) * total + 1
        assert where[host.name] * REFCORES <= (1 - RESERVE_RATIO) * speeds[host.name] + 0.001
    assert len(active) == shown["fits"], "all that fits is placed, and no more"
    for host in HOSTS:

        def seen(host=host):
            found = [s for s in samples(host) if s[0] == "amp_vcpu_booked_refcores"]
            return len(found) == where[host.name]

        until(seen, f"all bookings of {host.name}", 30)
        assert metric(host, "amp_instance_problem_info") is None
    log = (LOG / "nova-scheduler.log").read_text()[len(before) :]
    told = ("Got no allocation candidates", "hosts refused", "host refused")
    deciders = {line.split()[2] for line in log.splitlines() if any(t in line for t in told)}
    figure(f"scheduler workers that refused some of them: {len(deciders)}")
    assert len(deciders) >= 2
