# SPDX-License-Identifier: Apache-2.0
"""What a scheduler worker does before it refuses a request, and beside its requests."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from oslo_config import cfg

from amp_nova import message_bus
from amp_nova.nova_plugins import metrics, options, report_server
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


def test_a_directory_for_metrics_that_is_missing_is_one_warning(
    server, tmp_path, caplog, monkeypatch
):
    """The scheduler goes on, and writes as soon as it can."""
    folder = tmp_path / "textfile"
    monkeypatch.setattr(message_bus, "RETRY_S", 0.01)
    monkeypatch.setattr(metrics, "INTERVAL_S", 0.01)
    report_server.CONF.set_override("metrics_directory", str(folder), "amp_scheduler")
    thread = threading.Thread(target=server._write_metrics)
    thread.start()
    try:
        until(lambda: caplog.records, 10, "a warning")
        time.sleep(0.1)
        folder.mkdir()
        until(lambda: list(folder.glob("*.prom")), 10, "the file")
    finally:
        server.stop()
        thread.join()
        report_server.CONF.clear_override("metrics_directory", "amp_scheduler")

    (record,) = caplog.records
    assert f"cannot write metrics: [Errno 2] No such file or directory: '{folder}" in record.message
