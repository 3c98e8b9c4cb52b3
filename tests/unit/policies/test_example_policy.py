# SPDX-License-Identifier: Apache-2.0
"""The example policy of the contributor guide, installed as a package of its own."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import amp_nova
from tests.support.programs import run

ROOT = Path(amp_nova.__file__).parent.parent
EXAMPLE = ROOT / "doc/source/contributor/example_policy"

SCENARIO = """
name: five
duration_s: 300
host:
  reference: slow
  core_types:
    - {name: fast, count: 2, coefficient: 2.0}
    - {name: slow, count: 3, coefficient: 1.0}
vms:
  - {name: a, workload: {speedup: {fast: 2.0}}}
  - {name: b, vcpus: 3, workload: {speedup: {fast: 1.5}}}
  - {name: c, workload: {speedup: {fast: 1.1}}}
policy: longest-wait
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the installed package, module and metadata.

    Setuptools installs it directly, since pip would need the ``wheel`` package or the network.
    """
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    shutil.copytree(EXAMPLE, source, dirs_exist_ok=True)
    into = ("--install-dir", target)
    program = "from setuptools import setup; setup()"
    run(sys.executable, "-c", program, "install_lib", *into, "install_egg_info", *into, cwd=source)
    return target


def test_the_example_policy_is_found_and_shares_the_fast_cores_evenly(installed, tmp_path):
    """``amp-nova simulate`` finds it by its entry point; vCPUs that always run take equal turns."""
    scenario = tmp_path / "five.yaml"
    scenario.write_text(SCENARIO)

    output = run(
        *(sys.executable, "-m", "amp_nova.cmd.cli", "simulate", scenario, "--format", "json"),
        cwd=ROOT,
        PYTHONPATH=os.pathsep.join(map(str, (installed, ROOT))),
    )

    result = json.loads(output)
    shares = {name: vm["fast_share"] for name, vm in result["vms"].items()}
    assert shares == pytest.approx({"a": 0.4, "b": 0.4, "c": 0.4}, abs=0.01)
    assert result["policy"] == "longest-wait"
    assert result["fast_idle_ratio"] == 0.0
