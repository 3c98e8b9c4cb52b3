# SPDX-License-Identifier: Apache-2.0
"""The schedulers' metrics as node_exporter reads them."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from amp_nova.nova_plugins import metrics, options
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.wire.encoding import encode
from tests.support.host_reports import host_report

cfg = pytest.importorskip("oslo_config.cfg")


@pytest.fixture
def states():
    """Of a scheduler that has heard of one host, and got one report that is none."""
    conf = options.register(cfg.ConfigOpts())
    conf([])
    made = HostStates(conf)
    assert made.accept(encode(host_report()))
    assert not made.accept("{")
    return made


def test_each_worker_has_a_file_and_those_of_ended_ones_go(states, tmp_path):
    """Other files in the directory stay."""
    ended, other = tmp_path / f"{metrics.PREFIX}{1 << 30}.prom", tmp_path / "other.prom"
    for file in (ended, other):
        file.write_text("")
    made = metrics.Metrics(states)
    made.requests["capacity"] += 2

    metrics.write(made, tmp_path)

    (own,) = set(tmp_path.iterdir()) - {other}
    samples = {
        (s.name, s.labels.get("outcome") or s.labels.get("state")): s.value
        for family in text_string_to_metric_families(own.read_text())
        for s in family.samples
    }
    assert samples == {
        ("amp_scheduler_requests_total", "capacity"): 2,
        ("amp_scheduler_reports_total", "accepted"): 1,
        ("amp_scheduler_reports_total", "malformed"): 1,
        ("amp_scheduler_hosts", "usable"): 1,
        ("amp_scheduler_hosts", "stale"): 0,
        ("amp_scheduler_hosts", "unhealthy"): 0,
        ("amp_scheduler_pending_instances", None): 0,
    }
