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
    made.states.decided("host1", "a", Pending(request(pref_core=1), time.monotonic()))
    return made


def test_what_ended_a_moment_ago_is_noticed_before_a_refusal(server, monkeypatch):
    """A deleted server's capacity is free for the next request, however rarely Nova is asked."""

    def deleted(arriving, pending):
        assert not arriving
        server.states.follow(dict.fromkeys(pending), time.monotonic())

    monkeypatch.setattr(server, "follow_up", deleted)
    assert server.refresh()
    assert not server.states.pending()
    assert not server.refresh(), "nothing is pending that could have ended"


def test_concurrent_refusals_share_a_look(server, monkeypatch):
    """A look that began after a request came serves it as well."""
    looks, going = [], threading.Event()

    def slow(**_more):
        looks.append(1)
        going.wait(30)

    monkeypatch.setattr(server, "follow_up", slow)
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(server.refresh) for _ in range(8)]
        time.sleep(0.2)
        going.set()
        assert all(each.result(30) for each in asked)
    assert len(looks) < 8


def test_a_database_that_fails_refuses_and_is_logged(server, monkeypatch, caplog):
    """As if nothing had ended."""

    def failing(**_more):
        raise OSError("no database")

    monkeypatch.setattr(server, "follow_up", failing)
    assert not server.refresh()
    assert "cannot query instances in Nova's records: no database" in caplog.text


def test_a_host_that_is_new_is_looked_at_however_dear_the_last_look_was(server, monkeypatch):
    """Requests wait for what they have to know; the first look of a worker is dear."""
    looks = []

    def dear(arriving):
        looks.append(arriving)
        server.states.follow({}, time.monotonic(), ["cell"])
        return 1000.0

    monkeypatch.setattr(server, "follow_up", dear)
    for name in ("FIRST_LOOK_S", "FOLLOW_UP_S"):
        monkeypatch.setattr(report_server, name, 0.01)
    following = threading.Thread(target=server._follow)
    following.start()
    try:
        until(lambda: server.states.knows_arrivals("host1", "cell"), 10, "a first look")
        assert server.states.accept(encode(host_report(node="host2")))
        until(lambda: server.states.knows_arrivals("host2", "cell"), 10, "a look for the new host")
        time.sleep(0.2)
    finally:
        server.stop()
        following.join()
    assert looks == [True, True], "what is only pending waits for the budget"
