# SPDX-License-Identifier: Apache-2.0
"""Every query of every dashboard, against a real Prometheus that scrapes agents.

The agents run on simulated hosts and serve metrics over HTTP (tests/support/agents_served.py).
"""

import json
import re
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager

import pytest

from tests.support.agents_served import two_agents
from tests.support.lab import until
from tests.support.monitoring import PROMETHEUS, ROOT, program, prometheus

DASHBOARDS = ROOT / "etc/amp-nova/grafana"
LEAST_S, MOST_S = 20.0, 60.0
SHORTER = {
    r"\[5m\]": "[10s]",
    r"\[(20m|30m|1h|2h|6h|1d|3d|30d)\]": "[20s]",
    "offset 10m": "offset 1s",
    "interval: (1m|5m|1h)": "interval: 1s",
}
"""The windows of the recording rules, as short as the test."""


def panels():
    """Title of dashboard and panel, and the expression, of every query."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        found = json.loads(path.read_text())
        for panel in found["panels"]:
            for target in panel.get("targets", []):
                title = f"{found['title']} / {panel['title']}"
                yield title, target["expr"]


class Server:
    """A Prometheus on loopback, and the agents that it scrapes every second."""

    def __init__(self, address, agents):
        self.address, self.agents = address, agents

    def ask(self, path, **parameters):
        """The data of an answer of its API."""
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def series(self, expression):
        """How many series with a value an expression has now."""
        found = self.ask("query", query=expression)["result"]
        return sum(sample["value"][1] != "NaN" for sample in found)


def configured(folder, ports):
    """A configuration that scrapes these ports, with the rules for operators in the folder."""
    for name in ("rules.yaml", "alerts.yaml"):
        text = (PROMETHEUS / name).read_text()
        for window, shorter in SHORTER.items():
            text = re.sub(window, shorter, text)
        (folder / name).write_text(text)
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"host": f"compute-{at}"}}
        for at, port in enumerate(ports)
    ]
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml", "alerts.yaml"],
        "scrape_configs": [{"job_name": "amp-nova", "static_configs": targets}],
    }


@contextmanager
def scraping(tmp_path_factory, *ports):
    """Prometheus, once it answers; ``ports``: of hosts whose agents are not ours."""
    program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with two_agents() as agents:
        config = configured(folder, [*(agent.port for agent in agents), *ports])
        with prometheus(folder, config) as address:
            yield Server(address, agents)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Prometheus, once it has scraped long enough to have rates and recorded series."""
    with scraping(tmp_path_factory) as found:
        time.sleep(LEAST_S)
        kept = "cloud:amp_minutes_kept:ratio30d"
        until(lambda: found.series(kept), MOST_S, "a minute of the service level")
        found.over_booked, found.well = (f"127.0.0.1:{a.port}" for a in found.agents)
        yield found


# What each variable is replaced by; an expression needs data for one of the choices.
CHOICES = (
    {"host": "{well}", "resource": "db"},
    {"host": "{over_booked}", "resource": "web-6"},
    {"host": "{well}", "resource": "counted"},
    {"host": "{well}", "resource": "batch"},
)


def filled(server, expression, choice):
    """An expression with the variables of Grafana replaced."""
    text = expression.replace("$__rate_interval", "10s").replace("$__range", "15s")
    text = text.replace("[5m]", "[15s]").replace("$job", "amp-nova")
    text = text.replace('=~"$host"', '=~".*"').replace('=~"$project"', '=~".*"')
    host = choice["host"].format(well=server.well, over_booked=server.over_booked)
    text = text.replace("$host", host).replace("$resource", choice["resource"])
    assert "$" not in text
    return text


@pytest.mark.parametrize(("panel", "expression"), [*panels()])
def test_every_query_has_data(server, panel, expression):
    """In the panel of at least one of the hosts and instances."""
    queries = [filled(server, expression, choice) for choice in CHOICES]
    until(lambda: any(map(server.series, queries)), 15, f"data of {panel}: {expression}")


def test_every_variable_has_values(server):
    """The choices at the top of the dashboards: each label of each metric exists."""
    for path in DASHBOARDS.glob("*.json"):
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] != "query":
                continue
            matcher, label = re.fullmatch(
                r"label_values\((.*), (\w+)\)", variable["query"]
            ).groups()
            matcher = matcher.replace("$project", ".*").replace("$job", "amp-nova")
            found = server.ask("series", **{"match[]": matcher})
            assert found, variable["query"]
            assert all(label in series for series in found), variable["query"]


def test_alerts_are_worded(server):
    """The over-booked host is reported, and no template of a text fails."""

    def alerts():
        return server.ask("alerts")["alerts"]

    def of_over_booking():
        return [a for a in alerts() if a["labels"]["alertname"] == "AmpHostOverBooked"]

    until(of_over_booking, 15, "an alert of over-booking")

    for alert in alerts():
        for text in alert["annotations"].values():
            assert "error expanding" not in text
            assert "{{" not in text
    assert {a["labels"]["instance"] for a in of_over_booking()} == {server.over_booked}
