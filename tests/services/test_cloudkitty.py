# SPDX-License-Identifier: Apache-2.0
"""Chargeback: CloudKitty collects and rates what agents export (etc/amp-nova/cloudkitty)."""

import datetime
from decimal import Decimal

import pytest
import yaml

from tests.services.conftest import PERIOD_S
from tests.support.agents_served import FASTER
from tests.support.monitoring import ROOT

pytest.importorskip("cloudkitty", reason="it is in the environment of 'tox -e services'")

METRICS = ROOT / "etc/amp-nova/cloudkitty/metrics.yml"
SCOPE = "5ac0ffee"
PRICES = {
    "cpu-time": Decimal("0.02"),
    "reference-cpu-time": Decimal("0.03"),
    "booked-capacity": Decimal("0.05"),
}


@pytest.fixture(scope="module")
def conf(tmp_path_factory):
    """CloudKitty's configuration, with a database of its own."""
    from cloudkitty import db, service
    from cloudkitty.collector import prometheus  # noqa: F401  (its options)
    from cloudkitty.db import api
    from cloudkitty.rating.hash.db.sqlalchemy import models
    from oslo_config import cfg

    folder = tmp_path_factory.mktemp("cloudkitty")
    service.prepare_service(["cloudkitty-processor"], [])
    cfg.CONF.set_override("connection", f"sqlite:///{folder}/cloudkitty.db", "database")
    cfg.CONF.set_override("scope_key", "project", "collect")
    cfg.CONF.set_override("metrics_conf", str(METRICS), "collect")
    cfg.CONF.set_override("collector", "prometheus", "collect")
    api.get_instance().get_migration().upgrade("head")
    with db.session_for_write() as session:  # hashmap's migrations do not run on SQLite
        models.Base.metadata.create_all(session.get_bind())
    yield cfg.CONF
    cfg.CONF.reset()


@pytest.fixture(scope="module")
def points(conf, prometheus):
    """What CloudKitty's collector returns for the project, by metric."""
    from cloudkitty import collector

    conf.set_override("prometheus_url", f"{prometheus.address}/api/v1", "collector_prometheus")
    made = collector.get_collector()
    end = datetime.datetime.now(datetime.UTC)
    start = end - datetime.timedelta(seconds=PERIOD_S)
    names = {name.partition("@#")[2]: name for name in made.conf}
    return {alt: made.fetch_all(name, start, end, SCOPE) for alt, name in names.items()}


def of(points, name, resource):
    """The points of one instance."""
    return [p for p in points[name] if p.groupby["resource"] == resource]


def test_both_units_are_collected_for_the_project(points):
    """Twice as many reference core hours as core hours on a core of coefficient 2; seconds of the
    simulated hosts pass faster than those of Prometheus, and a second is an hour's minute."""
    found = {n: sum(float(p.qty) for p in of(points, n, "web-0")) for n in points}

    assert found["booked-capacity"] == pytest.approx(0.9)
    for name in ("cpu-time", "reference-cpu-time"):
        assert {p.groupby["project"] for p in points[name]} == {SCOPE}
        assert all(p.unit.endswith("core hour") for p in points[name])
    types = {p.metadata["core_type"]: float(p.qty) for p in of(points, "cpu-time", "web-0")}
    in_reference = types.get("fast", 0.0) * 2 + types.get("slow", 0.0)
    assert found["reference-cpu-time"] == pytest.approx(in_reference, rel=0.02)
    # On a busy machine the simulated hosts fall behind.
    assert 0.0 < found["reference-cpu-time"] < 1.2 * FASTER * PERIOD_S / 60


def test_a_server_is_charged_only_on_the_host_where_nova_has_it(points):
    """Neither what a host exports that Nova does not name, nor a server that Nova does not have."""
    for found in points.values():
        assert {point.groupby["resource"] for point in found} <= {"web-0", "db"}
    assert max(float(point.qty) for point in points["booked-capacity"]) < 1.0


def test_the_documented_prices_are_charged(conf, points):
    """Hashmap services and flat mappings, as the page on chargeback creates them."""
    from cloudkitty.dataframe import DataFrame
    from cloudkitty.rating.hash import HashMap

    now = datetime.datetime.now(datetime.UTC)
    for name, price in PRICES.items():
        service = HashMap.db_api.create_service(name)
        HashMap.db_api.create_mapping(
            cost=price,
            map_type="flat",
            service_id=service.service_id,
            start=now - datetime.timedelta(hours=1),
            name=name,
            created_by="operator",
        )
    frame = DataFrame(start=now, end=now)
    for name, found in points.items():
        for point in found:
            frame.add_point(point, name)

    rated = HashMap().process(frame)

    seen = list(rated.iterpoints())
    assert {name for name, _ in seen} == set(PRICES)
    for name, point in seen:
        assert float(point.price) == pytest.approx(float(point.qty * PRICES[name]))


def test_a_misspelt_aggregation_is_refused():
    """The check of the file is CloudKitty's own and does not let everything through."""
    from cloudkitty.collector.prometheus import PrometheusCollector
    from voluptuous import Invalid

    found = yaml.safe_load(METRICS.read_text())
    assert len(PrometheusCollector.check_configuration(found)) == 3
    found["metrics"]["resource:amp_cpu_cores:rate5m"]["extra_args"]["range_function"] = "rates"
    with pytest.raises(Invalid):
        PrometheusCollector.check_configuration(found)
