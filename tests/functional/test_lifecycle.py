"""A random walk over what users and operators do with servers, through two scheduler workers.

Bookings do not divide the cores, and agents report late: only when the walk says so. After each
step the bookings on every host, whether running or not, can be packed; in the end nothing is left.
"""

import contextlib
import os
from typing import ClassVar
from unittest import mock

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from nova.tests.fixtures.nova import ServiceFixture
from nova.tests.functional.api.client import OpenStackApiException
from nova.virt import fake

from amp_nova.admission.packing import pack
from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.report_server import CONF, ReportServer
from amp_nova.scheduling.host_fit import demands_on
from tests.functional.cloud import CloudTestCase

TYPES = {"slow": (1, 1.0), "fast": (1, 2.0)}
SIZES = ("0.6", "0.35", "0.15")
WALKS = int(os.environ.get("AMP_NOVA_WALKS", "1"))
STEPS = int(os.environ.get("AMP_NOVA_STEPS", "25"))
SERVERS_MAX = 8
SETTLED = ("ACTIVE", "ERROR", "SHUTOFF", "VERIFY_RESIZE", "SHELVED_OFFLOADED", "SUSPENDED")


class Walk(RuleBasedStateMachine):
    """The steps; ``cloud`` is the test case that runs them."""

    cloud: ClassVar
    steps: ClassVar = {}

    def __init__(self):
        super().__init__()
        self.servers = {}

    def do(self, name, number, *states, **action):
        """An action on one of the servers in these states, and wait for its end."""
        cloud = self.cloud
        able = [s for s, status in self.servers.items() if status in states]
        if not able:
            return
        server = able[number % len(able)]
        with contextlib.suppress(OpenStackApiException):  # there may be no host for it
            cloud.api.post_server_action(server, action)
            self.steps[name] = self.steps.get(name, 0) + 1
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
        body = cloud._build_server(flavor_id=cloud.sizes[size], networks="none")
        body |= {"min_count": count, "max_count": count, "return_reservation_id": True}
        found = cloud.api.post_server({"server": body})["reservation_id"]
        for server in cloud.api.get_servers(search_opts={"reservation_id": found}):
            self.wait(server["id"])
        self.steps[name] = self.steps.get(name, 0) + 1

    @precondition(lambda self: len(self.servers) < SERVERS_MAX)
    @rule(size=st.sampled_from(SIZES))
    def create(self, size):
        self.boot("create", 1, size)

    @precondition(lambda self: len(self.servers) < SERVERS_MAX)
    @rule(size=st.sampled_from(SIZES), count=st.integers(2, 3))
    def create_several(self, size, count):
        self.boot("create several", count, size)

    @precondition(lambda self: len(self.servers) < SERVERS_MAX)
    @rule(size=st.sampled_from(SIZES), failures=st.integers(1, 3))
    def create_where_builds_fail(self, size, failures):
        """Nova retries on alternates."""
        left, spawn = [None] * failures, fake.FakeDriver.spawn

        def failing(driver, *args, **kwargs):
            if left:
                left.pop()
                raise RuntimeError("no space left on device")
            return spawn(driver, *args, **kwargs)

        with mock.patch.object(fake.FakeDriver, "spawn", failing):
            self.boot("create, and the build fails", 1, size)

    @rule(number=st.integers(0, 7), size=st.sampled_from(SIZES))
    def resize(self, number, size):
        flavor = {"flavorRef": self.cloud.sizes[size]}
        self.do("resize", number, "ACTIVE", "SHUTOFF", resize=flavor)

    @rule(number=st.integers(0, 7))
    def confirm(self, number):
        self.do("confirm", number, "VERIFY_RESIZE", confirmResize=None)

    @rule(number=st.integers(0, 7))
    def revert(self, number):
        self.do("revert", number, "VERIFY_RESIZE", revertResize=None)

    @rule(number=st.integers(0, 7))
    def cold_migrate(self, number):
        self.do("cold migrate", number, "ACTIVE", "SHUTOFF", migrate=None)

    @rule(number=st.integers(0, 7))
    def live_migrate(self, number):
        body = {"host": None, "block_migration": "auto"}
        self.do("live migrate", number, "ACTIVE", **{"os-migrateLive": body})

    @rule(number=st.integers(0, 7))
    def stop(self, number):
        self.do("stop", number, "ACTIVE", **{"os-stop": None})

    @rule(number=st.integers(0, 7))
    def start(self, number):
        self.do("start", number, "SHUTOFF", **{"os-start": None})

    @rule(number=st.integers(0, 7))
    def suspend(self, number):
        self.do("suspend", number, "ACTIVE", suspend=None)

    @rule(number=st.integers(0, 7))
    def resume(self, number):
        self.do("resume", number, "SUSPENDED", resume=None)

    @rule(number=st.integers(0, 7))
    def shelve(self, number):
        self.do("shelve", number, "ACTIVE", "SHUTOFF", shelve=None)

    @rule(number=st.integers(0, 7))
    def unshelve(self, number):
        self.do("unshelve", number, "SHELVED_OFFLOADED", unshelve=None)

    @rule(number=st.integers(0, 7))
    def reboot(self, number):
        self.do("hard reboot", number, "ACTIVE", reboot={"type": "HARD"})

    @rule(number=st.integers(0, 7))
    def rebuild(self, number):
        image = {"imageRef": "a2459075-d96c-40d5-893e-577ff92e721c"}
        self.do("rebuild", number, "ACTIVE", rebuild=image)

    @precondition(lambda self: self.servers)
    @rule(number=st.integers(0, 7))
    def delete(self, number):
        server = sorted(self.servers)[number % len(self.servers)]
        self.remove(server)
        self.steps["delete"] = self.steps.get("delete", 0) + 1

    def remove(self, server):
        self.cloud._delete_server({"id": server})
        del self.servers[server]

    @rule()
    def report(self):
        """All agents report, and the workers read how their decisions ended."""
        self.cloud.cycle()

    def check_invariants(self, *args, **kwargs):
        """After each step."""
        super().check_invariants(*args, **kwargs)
        for name, agent in self.cloud.agents.items():
            report = agent.truth()
            packing = pack(demands_on(report), report.topology, report.reserve_ratio)
            assert packing.complete, f"{name} is over-booked: {packing.unplaced}"

    def teardown(self):
        """Nothing leaks."""
        for server in list(self.servers):
            self.remove(server)
        self.cloud.cycle()
        for worker in self.cloud.workers:
            assert worker.states.waiting() == frozenset()
            for name in self.cloud.HOSTS:
                assert worker.states.entry(name).report.instances == ()


class LifecycleTest(CloudTestCase):
    """Three hosts of a slow core and a fast one, and two workers."""

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
        Walk.cloud, Walk.steps = self, {}
        run_state_machine_as_test(
            Walk,
            settings=settings(
                max_examples=WALKS + 1,  # the first one of hypothesis has no steps
                stateful_step_count=STEPS,
                deadline=None,
                derandomize="AMP_NOVA_WALKS" not in os.environ,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate],
            ),
        )
        print(f"{sum(Walk.steps.values())} steps: {Walk.steps}")
