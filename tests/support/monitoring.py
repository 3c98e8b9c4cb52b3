# SPDX-License-Identifier: Apache-2.0
"""Where Prometheus' programs and the files for operators are, and what these may name."""

import re
import shutil
import subprocess
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import yaml

import amp_nova
from amp_nova.agent.publish import metrics
from tests.support.programs import until

ROOT = Path(amp_nova.__file__).parent.parent
PROMETHEUS = ROOT / "etc/amp-nova/prometheus"


def program(name):
    """The path of one of Prometheus' programs; skips the test where there is none."""
    own = ROOT / ".prometheus/usr/bin"
    found = shutil.which(name) or shutil.which(name, path=own)
    if found is None:
        pytest.skip(f"{name} is not installed: tools/prometheus gets it")
    return found


@contextmanager
def prometheus(folder, config):
    """The address of a Prometheus on loopback with this configuration, and data below a folder."""
    log = folder / "log"
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [program("prometheus"), f"--config.file={folder}/prometheus.yml"]
    command += [f"--storage.tsdb.path={folder}/data", "--web.listen-address=127.0.0.1:0"]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
    try:
        until(lambda: "ready to receive web requests" in log.read_text(), 30, f"{log}")
        yield "http://" + re.search(r"address=(127\.0\.0\.1:[1-9]\d*)", log.read_text())[1]
    finally:
        process.terminate()
        process.wait(30)


@cache
def rules(name):
    """All rules in one of the files."""
    groups = yaml.safe_load((PROMETHEUS / name).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def metric_rows():
    """Every row of the tables of the agent's metrics."""
    tables = (table for table in vars(metrics).values() if isinstance(table, tuple))
    return [row for table in tables for row in table if isinstance(row, metrics.Row)]


@cache
def known():
    """The agent's metrics, and those that a rule records."""
    kinds = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}
    own = {row.name + suffix for row in metric_rows() for suffix in kinds.get(row.kind, ("",))}
    return own | {rule["record"] for rule in rules("rules.yaml")}


def unknown(expression):
    """The metrics in an expression that are neither the agent's nor recorded by a rule."""
    plain = re.sub(r"\{[^}]*\}", "", expression)
    return {
        *re.findall(r"(?<![\w:])amp_[a-z_]+", plain),
        *re.findall(r"\w+:\w+:\w+", plain),
    } - known()
