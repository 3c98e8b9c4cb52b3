# SPDX-License-Identifier: Apache-2.0
"""Fifty concurrent requests of 0.6 reference cores, two scheduler workers, capacity for 24.

0.6 leaves a part of each pCPU free, so the sum that Placement claims does not prevent over-booking.

Requests are sent to the scheduler's RPC: Nova's fixtures have one lock for all cells, in which
concurrent boots that fail deadlock.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar
from unittest import mock

from fixtures import MonkeyPatch
from nova import context, objects
from nova.exception import NoValidHost
from nova.scheduler.client.query import SchedulerQueryClient
from nova.scheduler.client.report import SchedulerReportClient
from nova.scheduler.host_manager import HostManager

from tests.functional.test_placement import PlacementTestCase
from tests.support.nova_requests import request_spec

REQUESTS, CAPACITY, BOOKED = 50, 24, "0.6"
TYPES = {"slow": (6, 1.0), "fast": (2, 2.0)}


class ConcurrencyTest(PlacementTestCase):
    HOSTS: ClassVar = {"host1": TYPES, "host2": TYPES}
    WORKERS = 2

    def setUp(self):
        # Many threads wait for the only CPU, and a claim takes as long as they let it.
        for name in ("ECHO_S", "CONTENDED_S"):
            self.useFixture(MonkeyPatch(f"amp_nova.nova_plugins.decisions.{name}", 60.0))
        super().setUp()

    def request(self, flavor_id):
        """One instance's request."""
        admin = context.get_admin_context()
        return request_spec(objects.Flavor.get_by_flavor_id(admin, flavor_id))

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
        self.agents[host].host.add(spec.instance_uuid, {"pref_core": BOOKED})
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
        """Booked vCPUs without a place; all guests have started and are reported to all workers."""
        found = []
        for name, agent in self.agents.items():
            agent.host.wait(1.0)
            agent.last = agent.loop.cycle()
            agent.publisher.offer(agent.last, agent.info)
            here = set(agent.host.domains)
            for worker in self.workers:
                self.wait_until(
                    lambda w=worker, n=name, h=here: set(w.states.entry(n).report.by_uuid) == h,
                    "the report arrives",
                )
            found += agent.over_booked()
        return found

    def test_with_the_claim_every_place_is_taken_once(self):
        """Placement counts sums; whether they can be packed, it does not know.

        Nova claims the first of the candidates that Placement gave for a host. One that others have
        claimed since is refused by Placement. Workers learn from Nova's records that nothing became
        of such a request; what is left after that can be had.
        """
        flavor, refused = self.claimed_flavor(pref_core=BOOKED), []
        claim = SchedulerReportClient.claim_resources

        def claim_and_count(*args, **more):
            claimed = claim(*args, **more)
            if not claimed:
                refused.append(args)
            return claimed

        with mock.patch.object(SchedulerReportClient, "claim_resources", claim_and_count):
            placed = self.select_all(flavor)
        assert CAPACITY - len(refused) <= len(placed) <= CAPACITY
        assert self.over_booked() == []
        for worker in self.workers:
            worker.follow_up()
        left = [self.select(self.request(flavor)) for _ in range(CAPACITY - len(placed))]
        assert None not in left
        assert self.over_booked() == []
        assert self.select(self.request(flavor)) is None

    def test_without_the_claim_too(self):
        """Each worker hears of the decisions of all before it makes its own."""
        placed = self.select_all(self.flavor(pref_core=BOOKED))
        assert self.over_booked() == []
        assert len(placed) == CAPACITY
