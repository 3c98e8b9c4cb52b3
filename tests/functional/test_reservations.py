# SPDX-License-Identifier: Apache-2.0
"""Capacity is reserved until Nova says that an instance needs it no more, however it got there."""

import functools
import threading
import time
from typing import ClassVar
from unittest import mock
from uuid import uuid4

import fixtures
import nova.context
import pytest
from nova import objects
from nova.compute.manager import ComputeManager
from nova.conductor.manager import ComputeTaskManager
from nova.db.api import api as api_db
from nova.db.api import models as api_models
from nova.exception import BuildRequestNotFound
from nova.scheduler.client.report import SchedulerReportClient
from nova.virt import fake

from amp_nova.nova_plugins import nova_records, report_server
from tests.functional.cloud import CloudTestCase

TYPES = {"slow": (2, 1.0)}
REFRESH = report_server.ReportServer.refresh
"""Of which the fixtures allow no more than a test needs."""


class Killed(BaseException):
    """Ends a thread of Nova's that nothing handles, as if its process had been killed."""


class ReservationsTestCase(CloudTestCase):
    """Two hosts of two cores; bookings of 0.6 leave 0.4 of each core free."""

    HOSTS: ClassVar = {"host1": TYPES, "host2": TYPES}

    def follow_up(self):
        """Read how pending decisions ended, as the scheduler does twice a minute."""
        report_server.shared().follow_up()

    def pending(self, host):
        """The instances pending on a host."""
        return set(self.states.entry(host).pending)

    def fill(self, host, count, flavor):
        """Instances on a host, known to its agent."""
        servers = [self.boot(flavor, az=f"nova:{host}") for _ in range(count)]
        self.cycle(host)
        return servers

    def begin_boot(self, flavor, hints=None):
        """A server that is being built."""
        body = {"server": self._build_server(flavor_id=flavor, networks="none")}
        return self.api.post_server(body | ({"os:scheduler_hints": hints} if hints else {}))

    def wait_for_task(self, server, task):
        """Wait until Nova is at this point with a server."""
        self.wait_until(
            lambda: self.api.get_server(server["id"])["OS-EXT-STS:task_state"] == task, task
        )

    def held(self, name, release):
        """A function of the compute driver waits before it begins."""
        real = getattr(fake.FakeDriver, name)

        def waiting(driver, *args, **kwargs):
            release.wait()
            return real(driver, *args, **kwargs)

        return mock.patch.object(fake.FakeDriver, name, waiting)

    def failing_on(self, host):
        """Building an instance fails on this host."""
        spawn = fake.FakeDriver.spawn

        def failing(driver, *args, **kwargs):
            if driver._host == host:
                raise RuntimeError("no space left on device")
            return spawn(driver, *args, **kwargs)

        return mock.patch.object(fake.FakeDriver, "spawn", failing)


class ReservationsTest(ReservationsTestCase):
    def test_a_failed_build_ends_at_once_and_its_capacity_is_free_at_the_next_look(self):
        """Nova retries nowhere, since no other host was reserved for it."""
        flavor, tried = self.flavor(vcpus=2, pref_core="1"), []

        def failing(driver, context, instance, *args, **kwargs):
            tried.append(driver._host)
            raise RuntimeError("no space left on device")

        with mock.patch.object(fake.FakeDriver, "spawn", failing):
            self.boot(flavor, state="ERROR")
            assert len(tried) == 1
            self.follow_up()
            assert self.pending("host1") == self.pending("host2") == set()

        servers = [self.boot(flavor) for _ in self.HOSTS]
        assert {self.host_of(server) for server in servers} == set(self.HOSTS)
        self.cycle()
        assert [a.over_booked() for a in self.agents.values()] == [[], []]

    def test_a_hung_build_keeps_one_host_only(self):
        """Its compute node may have died: that is the host whose capacity is in doubt."""
        release, flavor = threading.Event(), self.flavor(vcpus=2, pref_core="1")
        self.addCleanup(release.set)
        with self.held("spawn", release):
            hung = self.begin_boot(flavor)
            self.wait_for_task(hung, "spawning")
            self.follow_up()
        here = self.host_of(hung)
        assert {h: self.pending(h) for h in self.HOSTS if self.pending(h)} == {here: {hung["id"]}}

        assert self.host_of(self.boot(flavor)) != here
        release.set()
        self._wait_for_state_change(hung, "ACTIVE")

    def test_a_server_that_is_deleted_after_its_conductor_died_gives_its_capacity_back(self):
        """The conductor had asked for a host, and wrote nothing about it."""
        flavor = self.flavor(vcpus=2, pref_core="1")
        schedule, asked = ComputeTaskManager._schedule_instances, threading.Event()

        def dies(manager, *args, **kwargs):
            schedule(manager, *args, **kwargs)
            asked.set()
            raise Killed

        with mock.patch.object(ComputeTaskManager, "_schedule_instances", dies):
            server = self.begin_boot(flavor)
            self.wait_until(asked.is_set, "the scheduler's answer")
        self.follow_up()
        assert self.pending("host1") | self.pending("host2") == {server["id"]}

        self._delete_server(server)
        self.follow_up()
        assert self.pending("host1") | self.pending("host2") == set()
        for _ in self.HOSTS:
            self.boot(flavor)

    def test_a_build_request_that_cannot_be_read_stops_nobody(self):
        """Such rows are left over from failed upgrades; Nova cannot list them either."""
        admin, uuid = nova.context.get_admin_context(), str(uuid4())
        with api_db.context_manager.writer.using(admin):
            rows = {"instance_uuid": uuid, "project_id": "p"}
            admin.session.add(api_models.BuildRequest(**rows, instance=None))
            admin.session.add(api_models.InstanceMapping(**rows, cell_id=None))
        with pytest.raises(BuildRequestNotFound):
            objects.BuildRequestList.get_all(admin)
        self.follow_up()
        self.boot(self.flavor(pref_core="1"))

    def test_the_hint_by_which_nova_marks_a_rebuild_gives_a_tenant_nothing(self):
        """Anyone may send it with a new server."""
        flavor = self.flavor(vcpus=2, pref_core="1")
        for host in self.HOSTS:
            self.fill(host, 1, flavor)
        server = self.begin_boot(flavor, {"_nova_check_type": "rebuild"})
        self._wait_for_state_change(server, "ERROR")
        self.cycle()
        assert [a.over_booked() for a in self.agents.values()] == [[], []]

    def test_a_forced_host_counts_before_its_agent_has_reported_the_guest(self):
        """The filter does not see it; Nova's database has it as soon as the host accepts it."""
        flavor, spawn = self.flavor(pref_core="1"), fake.FakeDriver.spawn
        seen = []

        def building(driver, context, instance, *args, **kwargs):
            self.follow_up()
            seen.append(self.pending("host1"))
            return spawn(driver, context, instance, *args, **kwargs)

        with mock.patch.object(fake.FakeDriver, "spawn", building):
            forced = self.boot(flavor, az="nova:host1")
        assert seen == [{forced["id"]}]

        self.follow_up()
        assert self.pending("host1") == {forced["id"]}, "it runs, but is not reported yet"
        self.cycle()
        assert self.pending("host1") == set()

    def test_a_slow_build_keeps_its_capacity_over_a_restart_of_the_scheduler(self):
        """The new scheduler reads it from Nova's database."""
        flavor, spawn = self.flavor(pref_core="1"), fake.FakeDriver.spawn
        seen = []

        def building(driver, context, instance, *args, **kwargs):
            self.restart_scheduler()
            self.follow_up()
            seen.append((instance.node, self.pending(instance.node)))
            return spawn(driver, context, instance, *args, **kwargs)

        with mock.patch.object(fake.FakeDriver, "spawn", building):
            server = self.boot(flavor)
        assert seen == [(self.host_of(server), {server["id"]})]

    def test_a_worker_that_starts_during_a_build_waits_until_it_knows_of_it(self):
        """The request that comes first is decided by what Nova's records say."""
        release, flavor = threading.Event(), self.flavor(vcpus=2, pref_core="1")
        self.addCleanup(release.set)
        with self.held("spawn", release):
            first = self.begin_boot(flavor)
            self.wait_for_task(first, "spawning")
        self.forget_all()
        second = self.begin_boot(flavor)
        time.sleep(1.0)
        assert self.api.get_server(second["id"])["OS-EXT-STS:task_state"] == "scheduling"

        self.follow_up()
        second = self._wait_for_state_change(second, "ACTIVE")
        assert self.host_of(second) != self.host_of(first)
        self.boot(flavor, state="ERROR")
        release.set()
        self._wait_for_state_change(first, "ACTIVE")
        self.cycle()
        assert [a.over_booked() for a in self.agents.values()] == [[], []]

    def test_a_restart_between_the_end_of_a_build_and_its_hosts_report_loses_nothing(self):
        """Nothing is under way any more, but no report has the guest."""
        flavor = self.flavor(vcpus=2, pref_core="1")
        for _ in self.HOSTS:
            self.boot(flavor)
        self.restart_scheduler()
        self.boot(flavor, state="ERROR")
        self.cycle()
        self.boot(flavor, state="ERROR")

    def test_both_hosts_of_a_resize_keep_their_capacity_until_it_is_confirmed(self):
        """The source, because it may be reverted."""
        self.flags(max_attempts=1, group="scheduler")
        (server,) = self.fill("host1", 1, self.flavor(pref_core="1"))
        self.fill("host2", 1, self.flavor(pref_core="1"))
        server = self._resize_server(server, self.flavor(pref_core="0.9"))
        assert self.host_of(server) == "host2"
        self.cycle()
        self.follow_up()

        self.boot(self.flavor(pref_core="1"))
        self.cycle()
        self.boot(self.flavor(pref_core="1"), state="ERROR")

        server = self._confirm_resize(server)
        self.cycle()
        self.follow_up()
        self.boot(self.flavor(pref_core="1"))

    def test_a_smaller_size_on_the_same_host_can_be_reverted(self):
        """Nothing else gets the old capacity before the resize is confirmed."""
        self.flags(allow_resize_to_same_host=True)
        self.fill("host2", 2, self.flavor(pref_core="1"))
        (server,) = self.fill("host1", 1, self.flavor(pref_core="1"))
        self.fill("host1", 1, self.flavor(pref_core="1"))
        server = self._resize_server(server, self.flavor(pref_core="0.5"))
        self.cycle()
        self.follow_up()
        self.boot(self.flavor(pref_core="0.4"), state="ERROR")

        server = self._confirm_resize(server)
        self.follow_up()
        self.boot(self.flavor(pref_core="0.4"))

    def test_a_server_that_was_refused_is_pending_nowhere(self):
        """Nova has it, without a host."""
        self.boot(self.flavor(pref_core="64"), state="ERROR")
        self.follow_up()
        assert not self.states.pending()

    def test_nova_is_asked_again_until_it_answers_and_then_rarely(self):
        """An error is logged once."""
        asked, working = [], threading.Event()

        def fails_at_first():
            asked.append(time.monotonic())
            if not working.is_set():
                raise OSError("no database")

        server = self.worker("alone")
        server.follow_up = fails_at_first
        for name in ("nova_plugins.report_server.FIRST_LOOK_S", "message_bus.RETRY_S"):
            self.useFixture(fixtures.MonkeyPatch(f"amp_nova.{name}", 0.01))
        thread = threading.Thread(target=server._join_workers, daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.stop)
        self.wait_until(lambda: len(asked) > 4, "looks that fail")
        assert self.stdlog.logger.output.count("cannot query instances in") == 1

        working.set()
        time.sleep(0.2)
        count = len(asked)
        time.sleep(0.2)
        assert len(asked) == count

    def test_a_suspended_and_a_shelved_instance_keep_their_capacity(self):
        """Both are defined; resuming and unshelving on the host do not ask the filter."""
        self.flags(shelved_offload_time=-1)
        suspended, shelved = self.fill("host1", 2, self.flavor(pref_core="1"))
        self.fill("host2", 2, self.flavor(pref_core="1"))
        self.api.post_server_action(suspended["id"], {"suspend": {}})
        self._wait_for_state_change(suspended, "SUSPENDED")
        self.api.post_server_action(shelved["id"], {"shelve": {}})
        self._wait_for_state_change(shelved, "SHELVED")
        self.cycle()
        self.restart_scheduler()

        self.boot(self.flavor(pref_core="0.1"), state="ERROR")


class RefusedClaimsTest(ReservationsTestCase):
    """One host, and a request whose claim Placement refuses: no worker is told that it ended."""

    HOSTS: ClassVar = {"host1": TYPES}

    def setUp(self):
        super().setUp()
        for worker in self.workers:
            worker.decisions._refresh = functools.partial(REFRESH, worker)
        self.asked, self.answer = threading.Event(), threading.Event()
        self.addCleanup(self.answer.set)
        claim = SchedulerReportClient.claim_resources

        def refused_once(*args, **kwargs):
            if self.asked.is_set():
                return claim(*args, **kwargs)
            self.asked.set()
            self.answer.wait()
            return False

        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.scheduler.client.report.SchedulerReportClient.claim_resources", refused_once
            )
        )

    def test_the_next_request_is_placed_after_nova_is_asked(self):
        """Before it gives up what a request has reserved that has failed."""
        self.answer.set()
        self.boot(self.flavor(vcpus=2, pref_core="1"), state="ERROR")
        self.boot(self.flavor(vcpus=2, pref_core="1"))

    def test_a_request_that_came_during_the_claim_waits_for_its_end(self):
        """Also if a worker has looked meanwhile and found that Nova is busy with the other one."""
        flavor = self.flavor(vcpus=2, pref_core="1")
        first = self.begin_boot(flavor)
        self.wait_until(self.asked.is_set, "the claim")
        self.follow_up()
        second = self.begin_boot(flavor)
        time.sleep(0.5)
        self.answer.set()
        self._wait_for_state_change(first, "ERROR")
        self._wait_for_state_change(second, "ACTIVE")


class ManyHostsTest(ReservationsTestCase):
    """Four hosts of two cores."""

    HOSTS: ClassVar = dict.fromkeys(("host1", "host2", "host3", "host4"), TYPES)

    def test_single_boots_fill_all_cores_while_they_are_being_built(self):
        """None of them holds capacity on a host where it is not built."""
        self.flags(instances=-1, cores=-1, ram=-1, group="quota")
        release, flavor = threading.Event(), self.flavor(pref_core="1")
        self.addCleanup(release.set)
        with self.held("spawn", release):
            servers = [self.begin_boot(flavor) for _ in range(8)]
            for server in servers:
                self.wait_for_task(server, "spawning")
            self.boot(flavor, state="ERROR")
            release.set()
            for server in servers:
                self._wait_for_state_change(server, "ACTIVE")
        self.cycle()
        assert [a.over_booked() for a in self.agents.values()] == [[]] * 4

    def test_an_unconfirmed_resize_keeps_its_source_and_its_destination_only(self):
        """All other hosts are free for other servers."""
        big = self.flavor(vcpus=2, pref_core="1")
        (server,) = self.fill("host1", 1, self.flavor(vcpus=2, pref_core="0.6"))
        server = self._resize_server(server, big)
        self.cycle()
        others = {self.host_of(self.boot(big)) for _ in range(2)}
        assert others == set(self.HOSTS) - {"host1", self.host_of(server)}
        self.boot(self.flavor(pref_core="0.5"), state="ERROR")

    def test_a_restart_while_a_disk_is_copied_keeps_both_hosts(self):
        """Of a cold migration, whose guest runs nowhere at that moment."""
        flavor = self.flavor(vcpus=2, pref_core="1")
        for host in ("host3", "host4"):
            self.fill(host, 1, flavor)
        (server,) = self.fill("host1", 1, flavor)
        release = threading.Event()
        self.addCleanup(release.set)
        with self.held("migrate_disk_and_power_off", release):
            self.api.post_server_action(server["id"], {"migrate": None})
            self.wait_for_task(server, "resize_migrating")
        self.restart_scheduler()
        self.boot(flavor, state="ERROR")

        release.set()
        server = self._wait_for_state_change(server, "VERIFY_RESIZE")
        assert self.host_of(server) == "host2"
        self.cycle()
        assert [a.over_booked() for a in self.agents.values()] == [[]] * 4

    def test_a_restart_before_a_resize_has_begun_counts_its_new_size(self):
        """The destination was chosen; until it begins, the instance has its old flavor alone."""
        self.flags(allow_resize_to_same_host=True)
        for host in ("host3", "host4"):
            self.fill(host, 1, self.flavor(vcpus=2, pref_core="1"))
        (server,) = self.fill("host1", 1, self.flavor(vcpus=2, pref_core="0.5"))
        self.fill("host1", 1, self.flavor(pref_core="0.5"))
        release, prepare = threading.Event(), ComputeManager.prep_resize
        chosen = threading.Event()
        self.addCleanup(release.set)

        def waiting(manager, *args, **kwargs):
            chosen.set()
            release.wait()
            return prepare(manager, *args, **kwargs)

        with mock.patch.object(ComputeManager, "prep_resize", waiting):
            big = self.flavor(vcpus=2, pref_core="0.9")
            self.api.post_server_action(server["id"], {"resize": {"flavorRef": big}})
            self.wait_until(chosen.is_set, "the destination")
        self.restart_scheduler()
        assert self.boot(self.flavor(vcpus=2, pref_core="0.4"), state="ERROR")

        release.set()
        server = self._wait_for_state_change(server, "VERIFY_RESIZE")
        assert self.host_of(server) == "host2"

    def test_servers_are_moved_before_their_agents_have_reported_them(self):
        """Also those that one request made."""
        one = self.boot(self.flavor(pref_core="0.5"))
        several = self.boot_several(2, flavor_id=self.flavor(pref_core="0.6"))
        for server in (one, *several):
            source = self._wait_for_state_change(server, "ACTIVE")["OS-EXT-SRV-ATTR:host"]
            server = self._migrate_server(server)
            assert self.host_of(server) != source
        self.cycle()
        assert [a.over_booked() for a in self.agents.values()] == [[]] * 4


class SecondCellTest(ReservationsTestCase):
    """One host in each of two cells."""

    NUMBER_OF_CELLS = 2
    CELLS: ClassVar = {"host2": "cell2"}

    def test_a_host_of_the_second_cell_is_learnt(self):
        """It gets what the host of the first cell has no capacity for, and is followed up."""
        self.fill("host1", 1, self.flavor(pref_core="1"))
        server = self.boot(self.flavor(vcpus=2, pref_core="0.6"))
        assert self.host_of(server) == "host2"

        self.cycle()
        assert self.pending("host2") == set()
        self.boot(self.flavor(vcpus=2, pref_core="0.6"), state="ERROR")

    def test_a_silent_cell_harms_only_itself(self):
        """Its reservations stay until it answers; those of the other cell end."""
        failed = {}
        with self.failing_on("host1"), self.failing_on("host2"):
            for host in self.HOSTS:
                server = self.boot(self.flavor(pref_core="1"), state="ERROR", host=host)
                failed[host] = {server["id"]}
        assert {host: self.pending(host) for host in self.HOSTS} == failed
        read = nova_records._in_a_cell

        def all_but_one(context, *arguments):
            if context.cell_uuid == self.cell_mappings["cell2"].uuid:
                raise OSError("silent")
            return read(context, *arguments)

        with mock.patch("amp_nova.nova_plugins.nova_records._in_a_cell", all_but_one):
            self.follow_up()
        assert self.pending("host1") == set()
        assert self.pending("host2") == failed["host2"]
        assert "Error gathering result from cell" in self.stdlog.logger.output

        self.follow_up()
        assert self.pending("host2") == set()
