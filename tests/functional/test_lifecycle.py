# SPDX-License-Identifier: Apache-2.0
"""A random walk over what users and operators do with servers, through two scheduler workers.

Bookings do not divide the cores, and agents report late: only when the walk says so. After each
step the bookings on every host, whether running or not, can be packed; in the end nothing is left.
A seed is a walk: what Nova's threads do meanwhile varies, so hypothesis would call it flaky.
"""

import collections
import contextlib
import os
import random
from typing import ClassVar
from unittest import mock

from nova.tests.functional.api.client import OpenStackApiException
from nova.virt import fake

from amp_nova.admission.packing import pack
from amp_nova.scheduling.demands import demands_on
from tests.functional.cloud import CloudTestCase

TYPES = {"slow": (1, 1.0)}
SIZES = ("0.6", "0.35", "0.15")
SEEDS = [int(seed) for seed in os.environ.get("AMP_NOVA_SEEDS", "7").split(",")]
STEPS = int(os.environ.get("AMP_NOVA_STEPS", "30"))
SERVERS_MAX = 8
SETTLED = {
    "ACTIVE",
    "ERROR",
    "PAUSED",
    "RESCUE",
    "SHELVED",
    "SHELVED_OFFLOADED",
    "SHUTOFF",
    "SOFT_DELETED",
    "SUSPENDED",
    "VERIFY_RESIZE",
}
IMAGE = "a2459075-d96c-40d5-893e-577ff92e721c"
ANTI_AFFINITY = {"name": "apart", "policy": "anti-affinity"}
LIVE = {"host": None, "block_migration": "auto"}
ACTIONS = {
    "confirm": ({"VERIFY_RESIZE"}, {"confirmResize": None}),
    "revert": ({"VERIFY_RESIZE"}, {"revertResize": None}),
    "cold migrate": ({"ACTIVE", "SHUTOFF"}, {"migrate": None}),
    "live migrate": ({"ACTIVE", "PAUSED"}, {"os-migrateLive": LIVE}),
    "stop": ({"ACTIVE"}, {"os-stop": None}),
    "start": ({"SHUTOFF"}, {"os-start": None}),
    "suspend": ({"ACTIVE"}, {"suspend": None}),
    "resume": ({"SUSPENDED"}, {"resume": None}),
    "pause": ({"ACTIVE"}, {"pause": None}),
    "unpause": ({"PAUSED"}, {"unpause": None}),
    "rescue": ({"ACTIVE", "SHUTOFF"}, {"rescue": None}),
    "unrescue": ({"RESCUE"}, {"unrescue": None}),
    "offload": ({"SHELVED"}, {"shelveOffload": None}),
    "unshelve": ({"SHELVED", "SHELVED_OFFLOADED"}, {"unshelve": None}),
    "soft reboot": ({"ACTIVE"}, {"reboot": {"type": "SOFT"}}),
    "hard reboot": ({"ACTIVE", "SHUTOFF", "SUSPENDED"}, {"reboot": {"type": "HARD"}}),
    "rebuild": ({"ACTIVE", "SHUTOFF"}, {"rebuild": {"imageRef": IMAGE}}),
    "restore": ({"SOFT_DELETED"}, {"restore": None}),
}
"""What users and operators do: with a server in one of these states, by this request."""


STEPS_BY_NAME = {}


def step(function):
    """Make a method one of the steps of a walk."""
    STEPS_BY_NAME[function.__name__] = function
    return function


class Walk:
    """The steps; ``cloud`` is the test case that runs them."""

    def __init__(self, cloud, seed):
        self.cloud, self.random = cloud, random.Random(seed)
        self.servers = {}
        self.done = collections.Counter()
        self.history = []

    def run(self, steps):
        """Take some steps, then delete everything; a step that is not possible does not count."""
        while (taken := self.done.total()) < steps:
            # Often enough that the cloud is full most of the time.
            names = [*ACTIONS, *STEPS_BY_NAME, *["create", "create_several"] * 3]
            name, size = self.random.choice(names), self.random.choice(SIZES)
            number = self.random.randrange(8)
            self.history.append((name, size, number))
            if name in ACTIONS:
                states, action = ACTIONS[name]
                self.do(name, number, states, action)
            else:
                STEPS_BY_NAME[name](self, number, size)
            if self.done.total() > taken:
                self.check()
            else:
                self.history.pop()
        self.end()

    def do(self, name, number, which, action):
        """An action on one of these servers, or in these states, and wait for its end."""
        able = [s for s, status in self.servers.items() if {s, status} & which]
        if not able:
            return
        server = able[number % len(able)]
        with contextlib.suppress(OpenStackApiException):  # there may be no host for it
            if action:
                self.cloud.api.post_server_action(server, action)
            else:
                self.cloud.api.delete_server(server)
            self.done[name] += 1
        self.wait(server)

    def wait(self, server):
        """Wait until Nova has finished with a server."""
        found = {}

        def finished():
            found.update(self.cloud.api.get_server(server))
            return found["OS-EXT-STS:task_state"] is None and found["status"] in SETTLED

        self.cloud.wait_until(finished, f"{server} is finished: {found}")
        self.servers[server] = found["status"]

    def boot(self, name, size, count=1, hints=None, **more):
        """Boot servers in one request; ``more``: of its body."""
        cloud = self.cloud
        if len(self.servers) + count > SERVERS_MAX:
            return
        body = cloud._build_server(flavor_id=cloud.sizes[size], networks="none") | more
        body |= {"min_count": count, "max_count": count, "return_reservation_id": True}
        request = {"server": body, "os:scheduler_hints": hints or {}}
        found = cloud.api.post_server(request)["reservation_id"]
        for server in cloud.api.get_servers(search_opts={"reservation_id": found}):
            self.wait(server["id"])
        self.done[name] += 1

    @step
    def create(self, number, size):
        self.boot("create", size)

    @step
    def create_several(self, number, size):
        self.boot("create several", size, 2 + number % 2)

    @step
    def create_on_a_named_host(self, number, size):
        self.boot("create on a named host", size, host=f"host{1 + number % 3}")

    @step
    def create_in_a_server_group(self, number, size):
        """No two of them are on the same host."""
        self.boot("create in a server group", size, hints={"group": self.cloud.group})

    @step
    def create_from_a_volume(self, number, size):
        volume = {"uuid": self.cloud.cinder.IMAGE_BACKED_VOL, "boot_index": 0}
        volume |= {"source_type": "volume", "destination_type": "volume"}
        more = {"imageRef": "", "block_device_mapping_v2": [volume]}
        self.boot("create from a volume", size, **more)

    @step
    def create_where_builds_fail(self, number, size):
        """Nova retries on alternates."""
        left, spawn = [None] * (1 + number % 3), fake.FakeDriver.spawn

        def failing(driver, *args, **kwargs):
            if left:
                left.pop()
                raise RuntimeError("no space left on device")
            return spawn(driver, *args, **kwargs)

        with mock.patch.object(fake.FakeDriver, "spawn", failing):
            self.boot("create, and the build fails", size)

    @step
    def resize(self, number, size):
        flavor = {"flavorRef": self.cloud.sizes[size]}
        self.do("resize", number, {"ACTIVE", "SHUTOFF"}, {"resize": flavor})

    @step
    def shelve(self, number, size):
        """With or without offload."""
        self.cloud.flags(shelved_offload_time=(0, -1)[number % 2])
        name = ("shelve with offload", "shelve without offload")[number % 2]
        states = {"ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED"}
        self.do(name, number // 2, states, {"shelve": None})

    @step
    def evacuate(self, number, size):
        """From a host that is down, and comes back."""
        host = f"host{1 + number % 3}"
        (service,) = self.cloud.api.get_services(binary="nova-compute", host=host)
        there = self.cloud.api.get_servers(search_opts={"host": host})
        able = {s["id"] for s in there if s["status"] in ("ACTIVE", "SHUTOFF", "ERROR")}
        if able & self.servers.keys():
            self.cloud.api.put_service_force_down(service["id"], True)
            self.do("evacuate", number // 3, able, {"evacuate": {}})
            self.cloud.restart_compute(host)  # it deletes what was evacuated
            self.cloud.api.put_service_force_down(service["id"], False)

    @step
    def soft_delete(self, number, size):
        self.cloud.flags(reclaim_instance_interval=3600)
        self.do("soft delete", number, {"ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED"}, {})
        self.cloud.flags(reclaim_instance_interval=0)

    @step
    def delete(self, number, size):
        if not self.servers:
            return
        self.remove(list(self.servers)[number % len(self.servers)])
        self.done["delete"] += 1

    def remove(self, server):
        self.cloud._delete_server({"id": server, "status": self.servers.pop(server)})

    @step
    def report(self, _number, _size):
        """All agents report, and the workers read how their decisions ended."""
        self.cloud.cycle()
        self.done["report"] += 1

    def check(self):
        """After each step."""
        for name, agent in self.cloud.agents.items():
            report = agent.truth()
            packing = pack(list(demands_on(report)), report.topology, report.reserve_ratio)
            assert packing.complete, f"{name}: {packing.unplaced} after {self.history}"

    def end(self):
        """Nothing leaks."""
        for server in list(self.servers):
            self.remove(server)
        self.cloud.cycle()
        for worker in self.cloud.workers:
            assert worker.states.pending() == frozenset(), self.history
            for name in self.cloud.HOSTS:
                assert worker.states.entry(name).report.instances == ()


class LifecycleTest(CloudTestCase):
    """Three hosts of one core, for which eight servers are too many, and two workers."""

    HOSTS: ClassVar = {"host1": TYPES, "host2": TYPES, "host3": TYPES}

    WORKERS = 2
    FILTERS: ClassVar = ["ComputeFilter", "ServerGroupAntiAffinityFilter", "AmpCapacityFilter"]

    def setUp(self):
        self.flags(allow_resize_to_same_host=True)
        super().setUp()
        self.group = self.api.post_server_groups(ANTI_AFFINITY)["id"]
        self.sizes = {size: self.flavor(pref_core=size) for size in SIZES}

    def restart_compute(self, host):
        """Restart a compute service; its hypervisor goes on."""
        restarted = self.restart_compute_service(self.computes[host])
        self.computes[host] = self.agents[host]._compute = restarted

    def test_no_step_over_books_a_host(self):
        """Whatever Nova does."""
        total = collections.Counter()
        for seed in SEEDS:
            walk = Walk(self, seed)
            walk.run(STEPS)
            total += walk.done
        print(f"{total.total()} steps, {len(total)} operations: {dict(total)}")
