# SPDX-License-Identifier: Apache-2.0
"""The dashboards are what their program writes; ``test_dashboards.py`` asks Prometheus for them."""

import json
import re
import subprocess
import sys

import pytest

from tests.support.monitoring import ROOT

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


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_links_lead_to_dashboards_and_their_variables(path):
    """A link names a dashboard that exists, and a variable that it has."""
    for url in re.findall(r'"url": "(/d/[^"]*)"', path.read_text()):
        uid, variable = re.match(r"/d/([\w-]+)\?var-(\w+)=", url).groups()
        target = json.loads((FOLDER / f"{uid}.json").read_text())
        assert variable in {v["name"] for v in target["templating"]["list"]}
