# SPDX-License-Identifier: Apache-2.0
"""The dashboards are what their program writes, and each answers a question."""

import json
import re
import subprocess
import sys

import pytest

from amp_nova.agent.publish import metrics
from tests.support.monitoring import ROOT, unknown

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


def test_dashboards_are_up_to_date():
    """What is checked in is what the program writes now, byte for byte."""
    assert FILES
    assert program("--check").returncode == 0


def panels(path):
    """The panels of a dashboard, each with the title of its row."""
    row = ""
    for panel in json.loads(path.read_text())["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
        else:
            yield row, panel


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_dashboard_explains_itself(path):
    """A question, and for every panel a description, a unit and a legend."""
    found = json.loads(path.read_text())

    assert found["description"].endswith("?")
    assert found["uid"] == path.stem
    for _, panel in panels(path):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] not in ("", "short"), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(t["legendFormat"] for t in panel["targets"]), panel["title"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_panels_have_data(path):
    """By metrics that exist, also at the default level of detail unless the row says otherwise.

    Each of several clouds has its own figures, by the variable ``job``.
    """
    sections = (metrics.SUMMED, metrics.VCPUS, metrics.IO_INSTANCES)
    detailed = {row.name for section in sections for row in section}
    for row, panel in panels(path):
        for expression in (target["expr"] for target in panel["targets"]):
            assert 'job="$job"' in expression, panel["title"]
            assert unknown(expression) == set(), panel["title"]
            used = set(re.findall(r"amp_[a-z_]+", expression))
            assert "detail = vcpu" in row or not detailed & used, panel["title"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_links_lead_to_dashboards_and_their_variables(path):
    """A link names a dashboard that exists, and a variable that it has."""
    for url in re.findall(r'"url": "(/d/[^"]*)"', path.read_text()):
        uid, variable = re.match(r"/d/([\w-]+)\?var-(\w+)=", url).groups()
        target = json.loads((FOLDER / f"{uid}.json").read_text())
        assert variable in {v["name"] for v in target["templating"]["list"]}
