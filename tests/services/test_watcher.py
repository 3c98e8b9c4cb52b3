# SPDX-License-Identifier: Apache-2.0
"""The example strategy for Watcher, loaded and run by Watcher's own code."""

import importlib.util

import pytest

from tests.services.conftest import PERIOD_S
from tests.support.monitoring import ROOT

pytest.importorskip("watcher", reason="it is in the environment of 'tox -e services'")

FOLDER = ROOT / "doc/source/admin/watcher_strategy"


@pytest.fixture(scope="module")
def module():
    """The example."""
    spec = importlib.util.spec_from_file_location("keep_bookings", FOLDER / "keep_bookings.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def strategy(module, prometheus):
    """The strategy, with Watcher's own datasource on a real Prometheus, and its default input."""
    from watcher import conf
    from watcher.common import context, utils

    context.make_context()
    address, port = prometheus.address.removeprefix("http://").split(":")
    conf.CONF([], project="watcher", default_config_files=[])
    conf.CONF.set_override("host", address, "prometheus_client")
    conf.CONF.set_override("port", int(port), "prometheus_client")
    made = module.KeepBookings(utils.Struct(datasources=["prometheus"]))
    properties = made.get_schema()["properties"]
    given = {name: its["default"] for name, its in properties.items()}
    made.input_parameters = utils.Struct({**given, "period": PERIOD_S})
    return made


def cluster(**instances):
    """Watcher's model of a cluster: two servers on either of two nodes, by the name of a server."""
    from watcher.decision_engine.model import element, model_root

    model = model_root.ModelRoot()
    nodes = [
        element.ComputeNode(uuid=f"node-{i}", hostname=f"compute{i}", name=f"compute{i}")
        for i in range(2)
    ]
    for node in nodes:
        model.add_node(node)
    for name, (node, more) in instances.items():
        uuid = name.replace("_", "-")
        server = element.Instance(uuid=uuid, name=name, **{"state": "active", **more})
        model.add_instance(server)
        model.map_instance(server, nodes[node])
    return model


def moved(strategy, model):
    """The actions with which Watcher would move servers, by its name."""
    strategy._compute_model = model
    found = (action["input_parameters"] for action in strategy.execute().actions)
    return {parameters["resource_id"]: parameters for parameters in found}


def test_the_server_that_is_short_is_moved(strategy):
    """The one that over-books one simulated host; none of those that get what they booked."""
    names = ("web_0", "web_6", "db", "counted")

    found = moved(strategy, cluster(**{name: (i // 2, {}) for i, name in enumerate(names)}))

    assert list(found) == ["web-6"]
    assert found["web-6"]["source_node"] == "compute0"
    assert found["web-6"]["migration_type"] == "live"
    assert "destination_node" not in found["web-6"]  # Nova chooses


def test_one_server_of_each_host_and_no_more_than_asked_for(strategy):
    """The next audit sees what the moves changed."""
    strategy.input_parameters.allowed = -1  # all are too short
    model = cluster(web_0=(0, {}), web_1=(0, {}), web_2=(1, {}), web_3=(1, {}))

    both = moved(strategy, model)
    strategy._solution.actions.clear()
    strategy.input_parameters.moves = 1
    one = moved(strategy, model)

    assert {parameters["source_node"] for parameters in both.values()} == {"compute0", "compute1"}
    assert (len(both), len(one)) == (2, 1)


def test_servers_that_are_stopped_excluded_or_not_in_the_audit_stay(strategy):
    """Whatever they lack."""
    excluded, stopped = {"watcher_exclude": True}, {"state": "stopped"}

    assert moved(strategy, cluster(web_6=(0, excluded))) == {}
    assert moved(strategy, cluster(web_6=(0, stopped))) == {}
    assert moved(strategy, cluster(db=(0, {}))) == {}


def test_watcher_accepts_the_action(strategy):
    """Its migrate action validates the parameters; a UUID in place of the simulated name."""
    from watcher.applier.actions.migration import Migrate

    (parameters,) = moved(strategy, cluster(web_6=(0, {}))).values()
    action = Migrate(None)
    action.input_parameters = {
        **parameters,
        "resource_id": "d000ef1f-dc19-4982-9383-087498bfde03",
    }

    assert action.validate_parameters()
