"""The dashboards are what their program writes, and each answers a question."""

import json
import re
import subprocess
import sys

import pytest

from amp_nova.agent.publish import metrics
from tests.monitoring import ROOT, rules

pytest.importorskip("grafana_foundation_sdk", reason="it is in the 'test' extra")

FOLDER = ROOT / "etc/amp-nova/grafana"
FILES = sorted(FOLDER.glob("*.json"))


def program(*arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / "tools/dashboards"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_dashboards_are_up_to_date(tmp_path):
    """What is checked in is what the program writes now, byte for byte."""
    assert program("--check").returncode == 0
    assert program(str(tmp_path)).returncode == 0

    assert [p.name for p in FILES] == [p.name for p in sorted(tmp_path.iterdir())]
    for path in FILES:
        assert path.read_text() == (tmp_path / path.name).read_text()


def test_a_changed_dashboard_is_noticed(tmp_path):
    """Also one that is there and should not be."""
    program(str(tmp_path))
    (tmp_path / "amp-nova-host.json").write_text("{}\n")
    (tmp_path / "old.json").write_text("{}\n")

    done = program("--check", str(tmp_path))

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "amp-nova-host.json is not up to date; run python tools/dashboards",
        "old.json is not up to date; run python tools/dashboards",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_dashboard_explains_itself(path):
    """A question, and for every panel a description, a unit and a legend."""
    found = json.loads(path.read_text())
    panels = [p for p in found["panels"] if p["type"] != "row"]

    assert found["description"].endswith("?")
    assert found["uid"] == path.stem
    for panel in panels:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(t["legendFormat"] for t in panel["targets"]), panel["title"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_links_lead_to_dashboards_and_their_variables(path):
    """A link names a dashboard that exists, and a variable that it has."""
    for url in re.findall(r'"url": "(/d/[^"]*)"', path.read_text()):
        uid, variable = re.match(r"/d/([\w-]+)\?var-(\w+)=", url).groups()
        target = json.loads((FOLDER / f"{uid}.json").read_text())
        assert variable in {v["name"] for v in target["templating"]["list"]}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_queries_name_metrics_that_exist(path):
    """In the table of the agent's metrics, or recorded by a rule."""
    kinds = {"histogram": ("_bucket", "_count"), "summary": ("_count", "_sum")}
    known = {r.name + s for r in metrics.rows() for s in kinds.get(r.kind, ("",))}
    recorded = {rule["record"] for rule in rules("rules.yaml")}
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel.get("targets", []):
            plain = re.sub(r"\{[^}]*\}", "", target["expr"])
            assert set(re.findall(r"(?<![\w:])amp_[a-z_]+", plain)) <= known
            assert set(re.findall(r"\w+:\w+:\w+", plain)) <= recorded
