# SPDX-License-Identifier: Apache-2.0
"""Bookings that do not divide a core, asked for at once through both scheduler workers.

Whether they fit depends on each core of a host; Placement knows their sum only. All bookings here
are in thousandths of the reference core.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.conftest import samples
from tests.e2e.test_claims import CLASS
from tools.cloud.client import Cloud, Server, openstack
from tools.cloud.layout import HOSTS, RESERVE_RATIO
from tools.cloud.processes import until

CORE = round(1000 * (1 - RESERVE_RATIO))
SIZES = (600, 350, 150)
AT_ONCE, STEPS = 12, 4
REPORTED_S = 3.0
"""In two seconds an agent reports that a server has left, as ``scheduling.rst`` says."""

pytestmark = [pytest.mark.cores(2), pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """An image with nothing to boot: its servers want no CPU, of which there is too little here."""
    disk = tmp_path_factory.mktemp("image") / "empty.img"
    disk.write_bytes(bytes(1 << 20))
    formats = {"disk_format": "raw", "container_format": "bare"}
    return Cloud().sdk.image.create_image(name="idle", filename=str(disk), **formats).id


@pytest.fixture(params=[(), ("--no-claim",)], ids=["claim", "no claim"])
def packing(request, cloud, idle):
    """Begins and ends with two empty hosts, also in Placement."""
    made = Packing(cloud, idle, request.param)
    made.check()
    yield made
    cloud.clear()
    made.placed.clear()
    made.check()


class Packing:
    """Servers of three sizes. ``placed``: host and booking of those that run, by id."""

    def __init__(self, cloud, image, options):
        self.cloud, self.image, self.claims = cloud, image, not options
        self.flavors, self.placed = {}, {}
        for size in SIZES:
            self.flavors[size] = cloud.flavor(" ".join((f"{size} thousandths", *options)))
            booking = f"amp:pref_core={size / 1000:g}"
            openstack("amp", "flavor", "set", self.flavors[size], booking, *options)

    def boot(self, sizes):
        """Ask for all of them at once; what was refused, always because no host is valid."""
        with ThreadPoolExecutor(len(sizes)) as pool:
            servers = pool.map(lambda s: self.cloud.create(self.image, self.flavors[s]), sizes)
            asked = dict(zip((server.id for server in servers), sizes, strict=True))

        def done():
            found = self.cloud.nova("get", "/servers/detail?limit=1000")["servers"]
            return [s for s in found if s["id"] in asked and s["status"] in ("ACTIVE", "ERROR")]

        until(lambda: len(done()) == len(asked), f"the {len(asked)} servers", 300)
        for server in done():
            if server["status"] == "ACTIVE":
                size = asked.pop(server["id"])
                self.placed[server["id"]] = server["OS-EXT-SRV-ATTR:host"], size
            else:
                assert "No valid host" in server["fault"]["message"]
        return sorted(asked.values())

    def delete(self, count):
        """Delete some at the same time."""
        if not count:
            return
        chosen = random.sample(sorted(self.placed), k=count)
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda resource: Server(self.cloud, resource).delete(), chosen))
        self.placed = {r: where for r, where in self.placed.items() if r not in chosen}

    def claimed_and_reserved(self, host):
        """What is claimed of the host's cores, and what its agent reserved for other bookings."""
        placement = self.cloud.sdk.placement
        (provider,) = placement.resource_providers(name=f"{host.name}_amp_{host.name}")
        path = f"/resource_providers/{provider.id}"
        offered = placement.get(f"{path}/inventories").json()["inventories"][CLASS]
        used = placement.get(f"{path}/usages").json()["usages"][CLASS]
        return used, offered["reserved"] - (offered["total"] - 2 * CORE)

    def check(self):
        """What both hosts have, in their agents' metrics and in Placement; it fits their cores."""
        found = []
        for host in HOSTS:
            mine = {r: size for r, (name, size) in self.placed.items() if name == host.name}
            until(lambda h=host, m=mine: exported(h) == m, f"{mine} on {host.name}", 60)
            wanted = (sum(mine.values()), 0) if self.claims else (0, sum(mine.values()))
            until(
                lambda h=host, w=wanted: self.claimed_and_reserved(h) == w,
                f"{wanted} of {host.name}",
                60,
            )
            on_one = {0}
            for size in mine.values():
                on_one |= {other + size for other in on_one}
            assert min(max(one, sum(mine.values()) - one) for one in on_one) <= CORE, mine
            assert not [s for s in samples(host) if s[0] == "amp_host_unenforced_vcpus" and s[2]]
            found.append(sorted(mine.values()))
        return found


def exported(host):
    """The bookings that a host's agent exports, by instance."""
    booked = [s for s in samples(host) if s[0] == "amp_vcpu_booked_refcores"]
    return {labels["resource"]: round(1000 * value) for _, labels, value in booked}


def test_each_core_takes_one_of_six_tenths(packing, figure):
    """Two per host, though the sum of three would fit; a deleted one makes room for another."""
    refused = packing.boot([600] * AT_ONCE)
    figure(f"{AT_ONCE} boots at once: {packing.check()} run, refused: {refused}")
    assert packing.check() == [[600, 600]] * 2
    packing.delete(1)
    packing.check()
    time.sleep(REPORTED_S)
    assert packing.boot([600] * 4) == [600] * 3
    assert packing.check() == [[600, 600]] * 2


def test_as_many_boots_at_once_as_there_are_free_cores_are_all_placed(packing, figure):
    """None is refused, whichever host each of them turned to first; again after some deletions."""
    for count in (4, 2, 3):
        packing.delete(count - 4 + len(packing.placed))
        packing.check()
        time.sleep(REPORTED_S)
        refused = packing.boot([600] * count)
        figure(f"{count} boots at once onto {count} free cores: refused: {refused}")
        assert (packing.check(), refused) == ([[600, 600]] * 2, [])


def test_a_mix_never_over_books_a_core(packing, figure):
    """In whatever order they come, and again when half of them were deleted."""
    all_refused = []
    for _ in range(STEPS):
        refused = packing.boot(random.choices(SIZES, k=AT_ONCE))
        figure(f"{AT_ONCE} boots at once: {packing.check()} run, refused: {refused}")
        all_refused += refused
        packing.delete(len(packing.placed) // 2)
        packing.check()
    assert all_refused, "the hosts were never full"
