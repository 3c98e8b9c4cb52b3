"""What the scheduler makes of reports that are late or missing, and how it starts."""

from typing import ClassVar

import nova.rpc
import oslo_messaging

from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.report_server import CONF, ReportServer
from amp_nova.wire import topics
from tests.functional.cloud import CloudTestCase


class ReportsTest(CloudTestCase):
    HOSTS: ClassVar = {"host1": {"slow": (2, 1.0)}}

    def stale(self, policy):
        """Let the report of the host become stale, under a policy."""
        self.agents["host1"].publisher.stop()
        self.flags(stale_after_s=1.0, stale_report=policy, group="amp_scheduler")
        self.wait_until(
            lambda: not self.states.entry("host1").usable(self.states.oldest_s()),
            "the report gets stale",
        )

    def test_a_host_whose_agent_is_silent_takes_nothing_that_books(self):
        """And goes on taking what books nothing."""
        self.stale("refuse")

        self.boot(self.flavor(pref_core="0.5"), state="ERROR")
        self.boot(self.flavor())

    def test_the_last_report_may_do(self):
        """``stale_report = last``: it fits as long as it fitted last."""
        self.stale("last")

        self.boot(self.flavor(pref_core="1"))
        self.boot(self.flavor(pref_core="1.5"), state="ERROR")

    def test_reports_may_be_left_out_of_account(self):
        """``stale_report = ignore``: the host passes, whatever is asked."""
        self.stale("ignore")

        self.boot(self.flavor(pref_core="64"))

    def test_a_starting_scheduler_asks_and_agents_answer(self):
        """It need not wait for the next periodic report."""
        late = ReportServer(HostStates(CONF), host="late")
        late.start()
        self.addCleanup(late.stop)

        self.wait_until(lambda: late.states.entry("host1") is not None, "the agent answers")

    def test_nonsense_on_the_bus_is_refused_and_the_rest_heard(self):
        """Whoever it comes from, it does not silence the others."""
        target = oslo_messaging.Target(
            exchange=topics.EXCHANGE,
            topic=topics.SCHEDULERS,
            namespace=topics.NAMESPACE,
            version=topics.RPC_VERSION,
            fanout=True,
        )
        client = oslo_messaging.get_rpc_client(nova.rpc.TRANSPORT, target)
        for nonsense in ("{}", None, "x" * (2 << 20), {"version": 1}):
            client.cast({}, "report", snapshot=nonsense)
        self.wait_until(lambda: self.states.refused.total() == 4, "all are refused")

        assert self.states.refused == {"malformed": 3, "oversized": 1}
        self.boot(self.flavor(pref_core="1"))
        self.cycle()

    def test_garbage_that_the_api_let_through_gets_no_host(self):
        """Before microversion 2.86 Nova checked nothing: the filter says what is wrong."""
        flavor = self.flavor()
        self.api.microversion = "2.85"
        self.api.post_extra_spec(flavor, {"extra_specs": {"amp:pref_core": "lots"}})
        self.api.microversion = self.microversion

        self.boot(flavor, state="ERROR")

        said = self.stdlog.logger.output
        assert "amp:pref_core='lots' is not allowed: give a decimal above 0" in said

    def test_the_log_says_why_a_host_was_refused(self):
        """One line with the reason, for whoever asks why there is no valid host."""
        self.boot(self.flavor(pref_core="1.5"), state="ERROR")

        why = "host1: a vCPU of 1.5 reference cores is more than any core gives"
        assert f"1 hosts refused: {why}" in self.stdlog.logger.output

    def test_multi_create_counts_each_one(self):
        """Two at once find two cores; a third one more is one too many for all three."""
        flavor = self.flavor(pref_core="1")

        def ask(count, status):
            server = self._build_server(flavor_id=flavor, networks="none")
            said = {"min_count": count, "max_count": count, "return_reservation_id": True}
            found = self.api.post_server({"server": {**server, **said}})["reservation_id"]
            listed = self.api.get_servers(search_opts={"reservation_id": found})
            assert len(listed) == count
            for server in listed:
                self._wait_for_state_change(server, status)

        ask(3, "ERROR")
        ask(2, "ACTIVE")
