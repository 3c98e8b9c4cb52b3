"""The default configuration file is read once, whatever the program is called."""

import subprocess
import sys
from pathlib import Path

import pytest

from amp_nova import conf
from amp_nova.agent import wiring

EVERY_LIST = """
[topology]
core_type = fast 0-1 2.0
core_type = slow 2-3
siblings = 0-1
siblings = 2-3
smt_busy_factor = fast 0.55
smt_busy_factor = slow 0.6
[agent]
state_path = {state}
booking = web-* amp:pref_core=0.5
booking = db-* amp:weight=2
coefficients_of = web-* fixed
coefficients_of = db-* adaptive
policy = amp-adaptive-fair
policy_parameter = max_slowdown=0.3
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory whose default file sets every option that may be repeated."""
    folder = tmp_path / "home/.amp-nova"
    folder.mkdir(parents=True)
    (folder / "amp-nova.conf").write_text(EVERY_LIST.format(state=tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


def test_the_example_sets_every_option_that_may_be_repeated(home):
    """A new option of this kind belongs into this test."""
    set_here = {line.partition("=")[0].strip() for line in EVERY_LIST.splitlines()}

    assert {o.name for _, opts in conf.list_opts() for o in opts if o.multi} <= set_here


@pytest.mark.parametrize("program", ["amp-nova", "amp-nova-agent", "amp-nova-status"])
def test_lists_have_every_line_once(home, monkeypatch, program):
    """oslo.config alone reads the project's file and the program's file, here the same one."""
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{program}"])

    found = conf.load()

    assert found.topology.core_type == ["fast 0-1 2.0", "slow 2-3"]
    assert found.topology.siblings == ["0-1", "2-3"]
    assert found.topology.smt_busy_factor == ["fast 0.55", "slow 0.6"]
    assert found.agent.booking == ["web-* amp:pref_core=0.5", "db-* amp:weight=2"]
    assert found.agent.coefficients_of == ["web-* fixed", "db-* adaptive"]
    assert found.agent.policy_parameter == ["max_slowdown=0.3"]
    assert wiring.policy(found).name == "amp-adaptive-fair"


def test_the_folder_of_further_files_is_read_once(home, monkeypatch):
    """Its lines follow those of the file."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/amp-nova"])
    more = home / "amp-nova.conf.d"
    more.mkdir()
    (more / "10.conf").write_text("[agent]\nbooking = x-* amp:weight=3\n")

    assert conf.load().agent.booking[2:] == ["x-* amp:weight=3"]


def test_topology_works_with_the_default_file_alone(home, tmp_path):
    """The command as it is typed, on a recorded machine with four pCPUs."""
    cpus = tmp_path / "root/sys/devices/system/cpu"
    for number in range(4):
        (cpus / f"cpu{number}/topology").mkdir(parents=True)
        (cpus / f"cpu{number}/topology/thread_siblings_list").write_text(f"{number}\n")
    for name in ("online", "present", "possible"):
        (cpus / name).write_text("0-3\n")
    (tmp_path / "root/proc").mkdir()
    (tmp_path / "root/proc/cpuinfo").write_text("")
    with Path(home, "amp-nova.conf").open("a") as config:
        config.write(f"[topology]\nroot = {tmp_path}/root\ncalibration_file =\n")
    program = "import sys; sys.argv[0] = 'amp-nova'; from amp_nova.cmd.cli import main; main()"

    words = ["topology", "-f", "value", "-c", "core_type", "-c", "coefficient"]

    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout.splitlines() == ["slow 1.0", "fast 2.0"]
