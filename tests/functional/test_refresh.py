# SPDX-License-Identifier: Apache-2.0
"""What a scheduler worker does before it refuses a request."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from oslo_config import cfg

from amp_nova.nova_plugins import options, report_server
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.report_server import ReportServer
from amp_nova.scheduling.pending import Pending
from amp_nova.wire.encoding import encode
from tests.support.host_reports import host_report, request
from tests.support.programs import until


@pytest.fixture
def server():
    """A worker on whose host one instance is pending."""
    conf = options.register(cfg.ConfigOpts())
    conf([])
    made = ReportServer(HostStates(conf), lambda _node: True)
    assert made.states.accept(encode(host_report()))
    made.states.decided("host1", "a", Pending((request(pref_core=1),), time.monotonic()))
    return made


def test_what_ended_a_moment_ago_is_noticed_before_a_refusal(server, monkeypatch):
    """A deleted server's capacity is free for the next request, however rarely Nova is asked."""

    def deleted(arriving):
        assert not arriving
        server.states.follow(dict.fromkeys(server.states.pending()), time.monotonic())

    monkeypatch.setattr(server, "follow_up", deleted)
    assert server.refresh()
    assert not server.states.pending()
    assert not server.refresh(), "nothing is pending that could have ended"


def test_concurrent_refusals_share_a_query(server, monkeypatch):
    """A query that began after a request came serves it as well."""
    queries, going = [], threading.Event()

    def slow(**_more):
        queries.append(1)
        going.wait(30)

    monkeypatch.setattr(server, "follow_up", slow)
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(server.refresh) for _ in range(8)]
        time.sleep(0.2)
        going.set()
        assert all(each.result(30) for each in asked)
    assert len(queries) < 8


def test_a_database_that_fails_refuses_and_is_logged(server, monkeypatch, caplog):
    """As if nothing had ended."""

    def failing(**_more):
        raise OSError("no database")

    monkeypatch.setattr(server, "follow_up", failing)
    assert not server.refresh()
    assert "cannot query instances in Nova's records: no database" in caplog.text


def test_after_a_costly_query_there_is_a_rest(server, monkeypatch):
    """The first query of a worker takes much CPU time; what is only pending waits."""
    queries = []

    def costly(arriving):
        queries.append(arriving)
        server.states.follow({}, time.monotonic(), ["cell"])
        return 1000.0

    monkeypatch.setattr(server, "follow_up", costly)
    for name in ("FIRST_LOOK_S", "FOLLOW_UP_S"):
        monkeypatch.setattr(report_server, name, 0.01)
    following = threading.Thread(target=server._follow)
    following.start()
    try:
        until(lambda: server.states.knows("host1", "cell"), 10, "a first query")
        time.sleep(0.2)
    finally:
        server.stop()
        following.join()
    assert queries == [True]
