"""Capacity is reserved until Nova says that an instance needs it no more, however it got there."""

import threading
import time
from typing import ClassVar
from unittest import mock

import fixtures
import nova.context
from nova import objects
from nova.virt import fake

from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.nova_records import Cells
from amp_nova.nova_plugins.report_server import ReportServer
from amp_nova.wire.encoding import encode
from tests.functional.cloud import CloudTestCase
from tests.host_reports import host_report, request

TYPES = {"slow": (2, 1.0)}


class ReservationsTestCase(CloudTestCase):
    """Two hosts of two cores; bookings of 0.6 leave 0.4 of each core free."""

    HOSTS: ClassVar = {"host1": TYPES, "host2": TYPES}

    def follow_up(self):
        """Read how pending decisions ended, as the scheduler does every two seconds."""
        report_server.shared().follow_up()

    def pending(self, host):
        """The instances pending on a host."""
        return set(self.states.entry(host).pending)

    def fill(self, host, count, flavor):
        """Instances on a host, known to its agent."""
        servers = [self.boot(flavor, az=f"nova:{host}") for _ in range(count)]
        self.cycle(host)
        return servers

    def failing_on(self, host):
        """Building an instance fails on this host."""
        spawn = fake.FakeDriver.spawn

        def failing(driver, *args, **kwargs):
            if driver._host == host:
                raise RuntimeError("no space left on device")
            return spawn(driver, *args, **kwargs)

        return mock.patch.object(fake.FakeDriver, "spawn", failing)


class ReservationsTest(ReservationsTestCase):
    def test_a_retry_on_an_alternate_host_finds_its_capacity(self):
        """It was reserved when the host was named, since Nova does not ask the filter again."""
        flavor = self.flavor(pref_core="0.6")
        self.fill("host2", 1, flavor)
        started = []

        def other_boot(driver, context, instance, *args, **kwargs):
            started.append(instance.uuid)
            if len(started) == 1:  # while it is being built, another one comes
                with mock.patch.object(fake.FakeDriver, "spawn", spawn):
                    started.append(self.boot(flavor)["id"])
                raise RuntimeError("no space left on device")
            return spawn(driver, context, instance, *args, **kwargs)

        spawn = fake.FakeDriver.spawn
        with mock.patch.object(fake.FakeDriver, "spawn", other_boot):
            server = self.boot(flavor)

        assert started[0] == started[-1] == server["id"]
        assert self.host_of(server) == "host2"
        assert self.host_of(self.api.get_server(started[1])) == "host1"
        self.follow_up()
        self.cycle()
        assert [a.over_booked() for a in self.agents.values()] == [[], []]
        assert self.pending("host1") == self.pending("host2") == set()

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

    def test_a_silent_cell_is_waited_for_only_once(self):
        """Until it answers it takes one thread and one line in the log, and delays no other."""
        # Nova's fixture lets no cell be used while another is.
        self.useFixture(fixtures.MonkeyPatch("nova.context.target_cell", mock.MagicMock()))
        silence, cells, asked = threading.Event(), Cells(), []
        self.addCleanup(silence.set)

        def question(_context, uuid):
            asked.append(uuid)
            if uuid == objects.CellMapping.CELL0_UUID:
                silence.wait()
            return "here"

        with mock.patch("amp_nova.nova_plugins.nova_records.ANSWER_S", 0.5):
            first = cells.query(question)
        with mock.patch("amp_nova.nova_plugins.nova_records.ANSWER_S", 3600.0):
            assert cells.query(question) == cells.query(question) == first
            assert set(first.values()) == {"here"}
            assert asked.count(objects.CellMapping.CELL0_UUID) == 1
            assert self.stdlog.logger.output.count("cannot query the instances of cell") == 1
            silence.set()
            self.wait_until(lambda: len(cells.query(question)) == len(first) + 1, "it answers")

    def test_nova_is_asked_rarely_while_nothing_is_pending(self):
        """Every two seconds only for what is pending; an error is logged once, and retried."""
        asked = []

        def failing():
            asked.append(1)
            raise OSError("no database")

        server = ReportServer(HostStates(report_server.CONF))
        server.follow_up = failing
        for name, value in (("FOLLOW_UP_S", 0.01), ("IDLE_S", 3600.0)):
            self.useFixture(
                fixtures.MonkeyPatch(f"amp_nova.nova_plugins.report_server.{name}", value)
            )
        thread = threading.Thread(target=server._follow_up, daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.stop)
        self.wait_until(lambda: asked, "the first look")
        time.sleep(0.2)
        assert len(asked) == 1

        server.states.accept(encode(host_report()))
        assert server.states.reserve("host1", "a", request(pref_core=1), "tentative")
        self.wait_until(lambda: len(asked) > 3, "looks while an instance is pending")
        assert self.stdlog.logger.output.count("cannot query instances in") == 1

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
        target_cell = nova.context.target_cell

        def all_but_one(context, cell):
            if cell is not None and cell.name == "cell2":
                raise OSError("silent")
            return target_cell(context, cell)

        with mock.patch("nova.context.target_cell", all_but_one):
            self.follow_up()
        assert self.pending("host1") == set()
        assert self.pending("host2") == failed["host2"]
        assert "cannot query the instances of cell" in self.stdlog.logger.output

        self.follow_up()
        assert self.pending("host2") == set()
