"""Fifty concurrent requests, two scheduler workers, capacity for twenty.

Requests are sent to the scheduler's RPC: Nova's fixtures have one lock for all cells, in which
concurrent boots that fail deadlock.
"""

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar
from unittest import mock

from nova import context, objects
from nova.exception import NoValidHost
from nova.scheduler.client.query import SchedulerQueryClient
from nova.scheduler.host_manager import HostManager
from nova.tests.fixtures.nova import ServiceFixture

from amp_nova.nova_plugins import host_states, report_server
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.report_server import CONF, ReportServer
from tests.functional.test_placement import PlacementTestCase

REQUESTS, CAPACITY = 50, 20
TYPES = {"slow": (6, 1.0), "fast": (2, 2.0)}


class ConcurrencyTest(PlacementTestCase):
    HOSTS: ClassVar = {"host1": TYPES, "host2": TYPES}
    WORKERS = 2

    def _setup_scheduler_service(self):
        """Workers that each have their own reports and decisions, as processes do."""
        self.workers = []
        for number in range(self.WORKERS):
            worker = report_server._shared = ReportServer(HostStates(CONF), f"worker{number}")
            self.workers.append(worker)
            self.addCleanup(worker.stop)
            fixture = self.useFixture(ServiceFixture("scheduler", f"worker{number}"))
        for worker in self.workers:
            worker.start()
        return fixture.service

    def request(self, flavor_id):
        """One instance's request."""
        admin = context.get_admin_context()
        flavor = objects.Flavor.get_by_flavor_id(admin, flavor_id)
        return objects.RequestSpec(
            admin,
            instance_uuid=str(uuid.uuid4()),
            flavor=flavor,
            image=objects.ImageMeta(properties=objects.ImageMetaProps()),
            project_id="project",
            user_id="user",
            num_instances=1,
            is_bfv=False,
            numa_topology=None,
            pci_requests=objects.InstancePCIRequests(requests=[]),
            **dict.fromkeys(
                (
                    "availability_zone",
                    "instance_group",
                    "requested_destination",
                    "limits",
                    "retry",
                    "ignore_hosts",
                    "force_hosts",
                    "force_nodes",
                )
            ),
            scheduler_hints={},
            security_groups=objects.SecurityGroupList(objects=[]),
            requested_resources=[],
            request_level_params=objects.RequestLevelParams(),
        )

    def select(self, spec):
        """The host that a worker selects, on which the guest then starts; ``None`` without one."""
        admin = context.get_admin_context()
        try:
            (found,) = SchedulerQueryClient().select_destinations(
                admin, spec, [spec.instance_uuid], return_objects=True
            )
        except NoValidHost:
            return None
        host = found[0].service_host
        self.agents[host].host.add(spec.instance_uuid, {"pref_core": "1"})
        return host

    def select_all(self, flavor):
        """Send all requests at once, to both workers; the hosts they got."""
        for worker in self.workers:
            for name in self.HOSTS:
                self.wait_until(lambda w=worker, n=name: w.states.entry(n) is not None, "reports")
        requests = [self.request(flavor) for _ in range(REQUESTS)]
        get_states, lock = HostManager.get_host_states_by_uuids, threading.Lock()

        def get_states_alone(*args):
            with lock:  # the fixtures' databases serve one query at a time
                return iter(list(get_states(*args)))

        with (
            mock.patch.object(HostManager, "get_host_states_by_uuids", get_states_alone),
            ThreadPoolExecutor(REQUESTS) as pool,
        ):
            hosts = list(pool.map(self.select, requests))
        return [host for host in hosts if host is not None]

    def over_booked(self):
        """Booked vCPUs without a place, as the agents report once the guests have started."""
        found = []
        for agent in self.agents.values():
            agent.host.wait(1.0)
            agent.last = agent.loop.cycle()
            found += agent.over_booked()
        return found

    def test_with_the_claim_no_host_is_ever_over_booked(self):
        """Both workers claim in Placement, which never allocates the same capacity twice.

        Two workers that compete for the same capacity may both give up; a retry succeeds.
        """
        flavor = self.claimed_flavor(pref_core="1")
        placed = self.select_all(flavor)
        print(f"{self.WORKERS} workers with the claim: {len(placed)} placed")
        assert len(placed) <= CAPACITY
        assert self.over_booked() == []

        time.sleep(host_states.TENTATIVE_S)
        while len(placed) < CAPACITY:
            host = self.select(self.request(flavor))
            assert host is not None, f"no host, and only {len(placed)} of {CAPACITY} are placed"
            placed.append(host)

        assert self.select(self.request(flavor)) is None
        assert self.over_booked() == []

    def test_without_the_claim_each_worker_knows_its_own_decisions_only(self):
        """Both workers may use the same capacity; the agents report it as over-booked."""
        placed = self.select_all(self.flavor(pref_core="1"))

        over = len(self.over_booked())
        print(f"two workers without the claim: {len(placed)} placed, {over} over-booked")
        assert CAPACITY <= len(placed) <= 2 * CAPACITY
        assert over == len(placed) - CAPACITY


class OneWorkerTest(ConcurrencyTest):
    """A single worker needs no claim."""

    WORKERS = 1

    def test_without_the_claim_each_worker_knows_its_own_decisions_only(self):
        """It knows all decisions."""
        placed = self.select_all(self.flavor(pref_core="1"))

        assert len(placed) == CAPACITY
        assert self.over_booked() == []
