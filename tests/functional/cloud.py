# SPDX-License-Identifier: Apache-2.0
"""A small cloud of Nova's fixtures: hosts with an agent each, and amp-nova's plugins."""

import os
import sys
import time
from typing import ClassVar

import fixtures
from nova.tests.fixtures.nova import ServiceFixture
from nova.tests.functional import integrated_helpers

from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.nova_records import Placement
from amp_nova.nova_plugins.report_server import CONF, ReportServer
from tests.functional.agents import Agent
from tests.support.programs import until

FILTER = "amp_nova.nova_plugins.filters.AmpCapacityFilter"
WAIT_RETRIES = 60
"""Half seconds to wait for a state of a server."""


class CloudTestCase(integrated_helpers._IntegratedTestBase):
    """Nova as an administrator uses it."""

    ADMIN_API = True
    CAST_AS_CALL = False  # reports go to all schedulers, as casts do
    microversion = "latest"
    HOSTS: ClassVar = {"host1": None, "host2": None}
    """Hosts by name, with their core types as in ``tests.support.hosts.topology``."""
    CELLS: ClassVar = {}
    """The cells of hosts that are not in the first one."""
    WORKERS = 1
    """Scheduler workers, each with reports and decisions of its own, as processes have."""
    FILTERS: ClassVar = ["ComputeFilter", "AmpCapacityFilter"]
    WEIGHERS: ClassVar = ["nova.scheduler.weights.all_weighers"]

    def setUp(self):
        # Nova's fixtures look for it in a checkout of Nova's, which this is not.
        paste = os.path.join(sys.prefix, "etc/nova/api-paste.ini")
        self.flags(api_paste_config=paste, group="wsgi")
        self.flags(compute_driver="fake.FakeDriver")
        self.flags(
            available_filters=["nova.scheduler.filters.all_filters", FILTER],
            enabled_filters=self.FILTERS,
            weight_classes=self.WEIGHERS,
            group="filter_scheduler",
        )
        # A heartbeat targets another cell, and Nova's fixtures give up after three such races.
        self.flags(report_interval=0, service_down_time=3600)
        # No test needs the flavors that Nova makes for each test, which takes CPU time.
        unused = "nova.tests.fixtures.DefaultFlavorsFixture"
        self.useFixture(fixtures.MonkeyPatch(unused, fixtures.Fixture))
        # Nova's fixtures have one lock for all cells, in which a thread that reads them deadlocks
        # with other services; ``follow_up`` does what it would.
        for name in ("FIRST_LOOK_S", "LOOK_S"):
            pause_s = f"amp_nova.nova_plugins.report_server.{name}"
            self.useFixture(fixtures.MonkeyPatch(pause_s, 3600.0))
        refresh = "amp_nova.nova_plugins.report_server.ReportServer.refresh"
        self.useFixture(fixtures.MonkeyPatch(refresh, lambda _self: False))
        self.forget()
        self.addCleanup(self.forget)
        self.agents = {}
        super().setUp()

    def run(self, result=None):
        """Run the test, and restore an attribute that Nova removes and pytest expects."""
        try:
            return super().run(result)
        finally:
            setattr(self, self._testMethodName, None)

    @staticmethod
    def forget():
        """Each test starts with a scheduler that knows no host."""
        report_server._shared = None

    @property
    def states(self):
        """What the scheduler knows about the hosts."""
        return report_server.shared().states

    def _setup_scheduler_service(self):
        self.workers = []
        for number in range(self.WORKERS):
            worker = report_server._shared = self.worker(f"worker{number}")
            self.workers.append(worker)
            self.addCleanup(worker.stop)
            fixture = self.useFixture(ServiceFixture("scheduler", f"worker{number}"))
        return fixture.service

    @staticmethod
    def worker(name):
        """What one scheduler worker has of amp-nova."""
        placement = Placement()
        return ReportServer(HostStates(CONF, known=placement), placement, name)

    def _setup_compute_service(self):
        for name, types in self.HOSTS.items():
            agent = self.agents[name] = Agent(
                self._start_compute(name, self.CELLS.get(name)), types
            )
            agent.publisher.start()
            self.addCleanup(agent.publisher.stop)
        for worker in self.workers:
            worker.start()
            self.wait_until(lambda w=worker: w.decisions._cast, "the bus of the workers")
        self.cycle()

    def restart_scheduler(self, *workers):
        """Forget all reports and decisions, and learn what a worker that starts learns.

        ``workers``: which of them; none means all.
        """
        self.forget_all(*workers)
        for worker in workers or self.workers:
            for name in self.agents:
                self.wait_until(
                    lambda w=worker, n=name: w.states.entry(n) is not None, f"{name} answers"
                )
            worker.follow_up()

    def forget_all(self, *workers):
        """What a worker forgets as it restarts; it asks the agents, but does not look yet."""
        for worker in workers or self.workers:
            worker.states._entries, worker.states._pending = {}, {}
            worker.states._cells = frozenset()
            worker._started_s = time.monotonic()
        for agent in self.agents.values():
            agent.publisher._request()

    def cycle(self, *names):
        """A control cycle on these hosts, or on all; waits until all workers have the reports.

        Then the workers read from Nova's database how their decisions ended.
        """
        for name in names or self.agents:
            self.agents[name].cycle()
        for name in names or self.agents:
            here = self.agents[name].report()
            for worker in self.workers:
                self.wait_until(
                    lambda w=worker, n=name, h=here: self.has_report(w, n, h),
                    f"the scheduler has the report of {name}",
                )
        for worker in self.workers:
            worker.follow_up()

    @staticmethod
    def has_report(worker, node, report):
        """Whether a worker knows just the instances in a report, and where they are packed."""
        if (entry := worker.states.entry(node)) is None:
            return False
        there, here = (
            {i.resource: [(v.pcpu, v.refcores, v.ips) for v in i.vcpus] for i in r.instances}
            for r in (entry.report, report)
        )
        return there == here

    @staticmethod
    def wait_until(condition, what):
        """Wait for something that happens in another thread."""
        until(condition, 60.0, what, pause_s=0.05)

    def flavor(self, vcpus=1, **specs):
        """A flavor; ``specs`` without ``amp:``."""
        extra = {f"amp:{key}": str(value) for key, value in specs.items()}
        return self._create_flavor(vcpu=vcpus, memory_mb=64, disk=0, ephemeral=0, extra_spec=extra)

    def boot(self, flavor, state="ACTIVE", **server):
        """An instance, once it is active or has failed."""
        return self._create_server(
            flavor_id=flavor, networks="none", expected_state=state, **server
        )

    def _wait_for_server_parameter(self, server, expected_params, max_retries=0, **more):
        """Nova's own waits 5 s, which a build and its retry may take on a busy machine."""
        retries = max(max_retries, WAIT_RETRIES)
        return super()._wait_for_server_parameter(server, expected_params, retries, **more)

    def boot_several(self, count, **request):
        """The ids of instances that one request makes; ``request``: as in Nova's API, its body."""
        body = self._build_server(networks="none", **request)
        body |= {"min_count": count, "max_count": count, "return_reservation_id": True}
        found = self.api.post_server({"server": body})["reservation_id"]
        return self.api.get_servers(search_opts={"reservation_id": found})

    def host_of(self, server):
        """The host an instance is on."""
        return self.api.get_server(server["id"])["OS-EXT-SRV-ATTR:host"]
