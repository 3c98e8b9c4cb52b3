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

from nova.tests.fixtures.nova import ServiceFixture
from nova.tests.functional.api.client import OpenStackApiException
from nova.virt import fake

from amp_nova.admission.packing import pack
from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.report_server import CONF, ReportServer
from amp_nova.scheduling.demands import demands_on
from tests.functional.cloud import CloudTestCase

TYPES = {"slow": (1, 1.0)}
SIZES = ("0.6", "0.35", "0.15")
SEEDS = [int(seed) for seed in os.environ.get("AMP_NOVA_SEEDS", "7").split(",")]
STEPS = int(os.environ.get("AMP_NOVA_STEPS", "30"))
SERVERS_MAX = 8
SETTLED = ("ACTIVE", "ERROR", "SHUTOFF", "VERIFY_RESIZE", "SHELVED_OFFLOADED", "SUSPENDED")


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
        """Take some steps, then delete everything."""
        for _ in range(steps):
            # Often enough that the cloud is full most of the time.
            name = self.random.choice([*sorted(STEPS_BY_NAME), *["create", "create_several"] * 3])
            size, number = self.random.choice(SIZES), self.random.randrange(8)
            self.history.append((name, size, number))
            STEPS_BY_NAME[name](self, number, size)
            self.check()
        self.end()

    def do(self, name, number, *states, **action):
        """An action on one of the servers in these states, and wait for its end."""
        cloud = self.cloud
        able = [s for s, status in self.servers.items() if status in states]
        if not able:
            return
        server = able[number % len(able)]
        with contextlib.suppress(OpenStackApiException):  # there may be no host for it
            cloud.api.post_server_action(server, action)
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

    def boot(self, name, count, size):
        """Boot servers in one request."""
        cloud = self.cloud
        if len(self.servers) + count > SERVERS_MAX:
            return
        body = cloud._build_server(flavor_id=cloud.sizes[size], networks="none")
        body |= {"min_count": count, "max_count": count, "return_reservation_id": True}
        found = cloud.api.post_server({"server": body})["reservation_id"]
        for server in cloud.api.get_servers(search_opts={"reservation_id": found}):
            self.wait(server["id"])
        self.done[name] += 1

    @step
    def create(self, number, size):
        self.boot("create", 1, size)

    @step
    def create_several(self, number, size):
        self.boot("create several", 2 + number % 2, size)

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
            self.boot("create, and the build fails", 1, size)

    @step
    def resize(self, number, size):
        flavor = {"flavorRef": self.cloud.sizes[size]}
        self.do("resize", number, "ACTIVE", "SHUTOFF", resize=flavor)

    @step
    def confirm(self, number, size):
        self.do("confirm", number, "VERIFY_RESIZE", confirmResize=None)

    @step
    def revert(self, number, size):
        self.do("revert", number, "VERIFY_RESIZE", revertResize=None)

    @step
    def cold_migrate(self, number, size):
        self.do("cold migrate", number, "ACTIVE", "SHUTOFF", migrate=None)

    @step
    def live_migrate(self, number, size):
        body = {"host": None, "block_migration": "auto"}
        self.do("live migrate", number, "ACTIVE", **{"os-migrateLive": body})

    @step
    def stop(self, number, size):
        self.do("stop", number, "ACTIVE", **{"os-stop": None})

    @step
    def start(self, number, size):
        self.do("start", number, "SHUTOFF", **{"os-start": None})

    @step
    def suspend(self, number, size):
        self.do("suspend", number, "ACTIVE", suspend=None)

    @step
    def resume(self, number, size):
        self.do("resume", number, "SUSPENDED", resume=None)

    @step
    def shelve(self, number, size):
        self.do("shelve", number, "ACTIVE", "SHUTOFF", shelve=None)

    @step
    def unshelve(self, number, size):
        self.do("unshelve", number, "SHELVED_OFFLOADED", unshelve=None)

    @step
    def reboot(self, number, size):
        self.do("hard reboot", number, "ACTIVE", reboot={"type": "HARD"})

    @step
    def rebuild(self, number, size):
        image = {"imageRef": "a2459075-d96c-40d5-893e-577ff92e721c"}
        self.do("rebuild", number, "ACTIVE", rebuild=image)

    @step
    def delete(self, number, size):
        if not self.servers:
            return
        self.remove(list(self.servers)[number % len(self.servers)])
        self.done["delete"] += 1

    def remove(self, server):
        self.cloud._delete_server({"id": server})
        del self.servers[server]

    @step
    def report(self, _number, _size):
        """All agents report, and the workers read how their decisions ended."""
        self.cloud.cycle()

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
            assert worker.states.waiting() == frozenset(), self.history
            for name in self.cloud.HOSTS:
                assert worker.states.entry(name).report.instances == ()


class LifecycleTest(CloudTestCase):
    """Three hosts of one core, for which eight servers are too many, and two workers."""

    HOSTS: ClassVar = {"host1": TYPES, "host2": TYPES, "host3": TYPES}

    def setUp(self):
        self.flags(shelved_offload_time=0)
        self.flags(allow_resize_to_same_host=True)
        super().setUp()
        self.sizes = {size: self.flavor(pref_core=size) for size in SIZES}

    def _setup_scheduler_service(self):
        self.workers = []
        for number in range(2):
            worker = report_server._shared = ReportServer(HostStates(CONF), f"worker{number}")
            self.workers.append(worker)
            self.addCleanup(worker.stop)
            fixture = self.useFixture(ServiceFixture("scheduler", f"worker{number}"))
            worker.start()
        return fixture.service

    def cycle(self):
        """A control cycle on all hosts, whose reports reach both workers."""
        for name, agent in self.agents.items():
            agent.cycle()
            here = agent.reported()
            for worker in self.workers:
                self.wait_until(
                    lambda w=worker, n=name, h=here: (
                        (entry := w.states.entry(n)) is not None and set(entry.report.by_uuid) == h
                    ),
                    f"both workers have the report of {name}",
                )
        for worker in self.workers:
            worker.follow_up()

    def test_no_step_over_books_a_host(self):
        """Whatever Nova does."""
        total = collections.Counter()
        for seed in SEEDS:
            walk = Walk(self, seed)
            walk.run(STEPS)
            total += walk.done
        print(f"{total.total()} steps: {dict(total)}")
