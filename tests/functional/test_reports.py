# SPDX-License-Identifier: Apache-2.0
"""How the scheduler treats late, missing and malformed reports, and how it starts."""

from typing import ClassVar
from unittest import mock

import nova.rpc
import oslo_messaging
from fixtures import MonkeyPatch
from nova import context, objects

from amp_nova.agent.publish.host_reports import MessageBus
from amp_nova.nova_plugins import nova_records, report_server
from amp_nova.nova_plugins.report_server import CONF
from amp_nova.wire import topics
from amp_nova.wire.encoding import encode
from tests.functional.cloud import CloudTestCase
from tests.support.host_reports import host_report


class ReportsTest(CloudTestCase):
    HOSTS: ClassVar = {"host1": {"slow": (2, 1.0)}}

    def test_a_host_whose_agent_is_silent(self):
        """It takes no booked instance, unless ``stale_report`` says otherwise."""
        self.agents["host1"].publisher.stop()
        # A report that is still on its way would make the host usable for another second.
        silent = mock.patch.object(self.states, "accept")
        silent.start()
        self.addCleanup(silent.stop)
        self.flags(stale_after_s=1.0, stale_report="refuse", group="amp_scheduler")
        self.wait_until(
            lambda: not self.states.entry("host1").usable(self.states.oldest_s()),
            "the report becomes stale",
        )
        self.boot(self.flavor(pref_core="0.5"), state="ERROR")
        self.boot(self.flavor())

        # Host fit is judged by the last report.
        self.flags(stale_report="last", group="amp_scheduler")
        requests = report_server.shared().metrics.requests
        before = requests.copy()
        self.boot(self.flavor(pref_core="1"))
        self.boot(self.flavor(pref_core="1.5"), state="ERROR")
        assert requests - before == {"passed": 1, "capacity": 1}

        # The host passes, whatever the flavor books.
        self.flags(stale_report="ignore", group="amp_scheduler")
        self.boot(self.flavor(pref_core="64"))

    def test_a_scheduler_asks_for_reports_and_its_first_request_waits_for_them(self):
        """Neither waits for the next periodic report.

        A worker begins to listen at its first request, when it knows no host.
        """
        late = self.worker("late")
        late.start()
        self.addCleanup(late.stop)

        self.wait_until(lambda: late.states.entry("host1") is not None, "the agent answers")

        self.states._entries, self.states._cells = {}, frozenset()
        report_server.shared()._started_s = None  # as in a worker that was just forked
        for name in ("FIRST_LOOK_S", "LOOK_S"):
            self.useFixture(MonkeyPatch(f"amp_nova.nova_plugins.report_server.{name}", 0.2))
        # Nova's fixtures let no cell be read while the conductor is in one.
        cells = frozenset(
            cell.uuid for cell in objects.CellMappingList.get_all(context.get_admin_context())
        )
        find = "amp_nova.nova_plugins.nova_records.find"
        self.useFixture(MonkeyPatch(find, lambda *_: ({}, cells)))
        self.boot(self.flavor(pref_core="1"))
        assert "this worker has just started: its requests wait" in self.stdlog.logger.output

    def test_a_scheduler_answers_an_agent_that_asks_whether_any_listens(self):
        """Casts alone do not tell."""
        with mock.patch.object(report_server.Endpoint, "listens", return_value=None) as asked:
            MessageBus(nova.rpc.TRANSPORT, "host1").probe()

        asked.assert_called_once()

    def test_reports_may_have_a_bus_of_their_own(self):
        """What workers tell each other stays on Nova's, to which agents then need no access."""
        url = "rabbit://amp:SECRET@controller:5672/amp"
        self.flags(transport_url=url, group="amp_scheduler")
        server, listening = self.worker("worker"), {}

        def listen(bus, target, *_args, **_more):
            listening[target.topic] = bus
            return mock.Mock()

        with (
            mock.patch("oslo_messaging.get_rpc_transport", lambda _conf, used: str(used)),
            mock.patch("oslo_messaging.get_rpc_server", listen),
            mock.patch("oslo_messaging.get_rpc_client") as client,
        ):
            server.start()
            self.wait_until(lambda: client.call_count == 2, "it listens")
            server.stop()

        nova_bus, reports = CONF.transport_url, f"{url}?rabbit_interval_max=2"
        assert listening == {topics.WORKERS: nova_bus, topics.SCHEDULERS: reports}
        called = {(call.args[0], call.args[1].topic) for call in client.call_args_list}
        assert called == {(nova_bus, topics.WORKERS), (reports, topics.AGENTS)}

    def cast(self, *reports):
        """Send reports as an agent does."""
        target = oslo_messaging.Target(
            exchange=topics.EXCHANGE,
            topic=topics.SCHEDULERS,
            namespace=topics.NAMESPACE,
            version=topics.RPC_VERSION,
            fanout=True,
        )
        client = oslo_messaging.get_rpc_client(nova.rpc.TRANSPORT, target)
        for report in reports:
            client.cast({}, "report", snapshot=report)

    def test_malformed_reports_and_those_of_unknown_hosts_are_rejected(self):
        """A host is looked up in Placement by its whole name; all are counted, one of a kind is
        logged, and later reports are still received."""
        self.cast("{}", None, "x" * (2 << 20), {"version": 1})
        names = ("host", "host1%", "stranger")
        self.cast(*(encode(host_report(node=name)) for name in names))
        refused = {"malformed": 3, "oversized": 1, "unknown_host": 3}
        self.wait_until(lambda: refused.items() <= self.states.reports.items(), "all are rejected")
        assert "Nova has no host host; 1 of this kind" in self.stdlog.logger.output
        assert self.states.entry("stranger") is None
        self.boot(self.flavor(pref_core="1"))
        self.cycle()

    def test_hosts_are_known_whether_or_not_their_cell_answers(self):
        """Placement has the hosts of all cells, also of one that was made a moment ago.

        While it is silent, those that it had are still known; the log says so, and it is not asked
        for each of the others.
        """
        with (
            mock.patch("nova.context.scatter_gather_cells", side_effect=OSError("silent")),
            mock.patch("nova.context.load_cells", side_effect=OSError("silent")),
        ):
            known = nova_records.Placement()
            assert known("host1")
            self.placement.post(
                "/resource_providers",
                {
                    "name": "host1_amp_slow",
                    "parent_provider_uuid": self._get_provider_uuid_by_host("host1"),
                },
                version="1.14",
            )
            known.read()
            assert not known("host1_amp_slow"), "it is a provider of the agent's, and no host"

        now_s = [0.0]
        listed = {"resource_providers": [{"uuid": "u", "name": "host1"}]}
        get = mock.Mock(side_effect=[listed, OSError("silent"), OSError("silent")])
        known = nova_records.Placement(get, lambda: now_s[0])
        assert known("host1")
        now_s[0] += nova_records.REREAD_S
        assert [known(f"host{n}") for n in range(1, 100)] == [True] + [False] * 98
        assert get.call_count == 2
        assert self.stdlog.logger.output.count("cannot look up host host2 in Placement") == 1

    def test_the_log_says_why_there_is_no_host(self):
        """The reason of a host, or what is wrong with the flavor: before microversion 2.86 Nova
        validates nothing."""
        flavor = self.flavor()
        self.api.microversion = "2.85"
        self.api.post_extra_spec(flavor, {"extra_specs": {"amp:pref_core": "lots"}})
        self.api.microversion = self.microversion

        self.boot(flavor, state="ERROR")

        said = self.stdlog.logger.output
        assert "amp:pref_core='lots' is not allowed: give a decimal above 0" in said

        self.boot(self.flavor(pref_core="1.5"), state="ERROR")

        why = "host1: a vCPU of 1.5 reference cores is more than any core gives"
        assert f"1 hosts refused: {why}" in self.stdlog.logger.output

    def test_multi_create_counts_each_one(self):
        """On two cores, a request for two instances succeeds and one for three fails as a whole."""
        flavor = self.flavor(pref_core="1")

        def create(count, status):
            listed = self.boot_several(count, flavor_id=flavor)
            assert len(listed) == count
            for server in listed:
                self._wait_for_state_change(server, status)

        create(3, "ERROR")
        self.cycle()  # reads from Nova's database that none of the three is anywhere
        create(2, "ACTIVE")
