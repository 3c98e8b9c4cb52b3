# SPDX-License-Identifier: Apache-2.0
"""``amp-nova simulate`` as its user sees it."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import amp_nova
from tests.support.tables import cells
from tests.unit.lab.commands.refusals import refused

ROOT = Path(amp_nova.__file__).parent.parent
SCENARIO = ROOT / "tests/scenarios/same-work-same-time.yaml"
CREDIT = ROOT / "tests/scenarios/credit-twelve.yaml"
TWO = """\
duration_s: 10
host: {core_types: [{name: slow, count: 2, coefficient: 1.0}]}
vms: [{name: a, extra_specs: {amp:pref_core: 0.5}}, {name: b}]
"""


@pytest.fixture
def simulate(amp_nova):
    """Runs ``amp-nova simulate``."""
    return functools.partial(amp_nova, "simulate")


def run_in_process(*arguments, **environment):
    """The same as a process of its own."""
    program = "import sys; from amp_nova.cmd.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, "simulate", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_booking_that_cannot_hold_is_said_first(simulate, tmp_path):
    """5 reference cores on cores of 1; the result is on standard output all the same."""
    path = tmp_path / "s.yaml"
    path.write_text(TWO.replace("0.5", "5"))

    status, table, err = simulate(path)

    assert (status, cells(table)[1][1]) == (0, "5.0")
    assert "VM 'a', vCPU 0: over-booked: no core type that it may use can give 5" in err


def test_the_table_has_a_line_for_every_guest(simulate, tmp_path):
    """Above the figures of the host; unknown numbers are None."""
    path = tmp_path / "s.yaml"
    path.write_text(TWO)

    status, table, err = simulate(path)

    assert (status, err) == (0, "")
    assert [row[:3] for row in cells(table)] == [
        ["VM", "Booked", "Ratio"],
        ["a", "0.5", "1.0"],
        ["b", "-", "-"],
    ]
    assert table.splitlines()[-1].startswith("throughput")


def test_policy_seed_and_duration_can_be_set(simulate):
    """The command line overrides the file."""
    status, text, _ = simulate(
        SCENARIO, "--policy", "pinned", "--set", "duration_s=20", "--format", "json"
    )
    assert status == 0
    assert json.loads(text)["policy"] == "pinned"
    assert json.loads(text)["duration_s"] == 20.0

    short = ("--set", "duration_s=30", "--format", "json")
    texts = [simulate(CREDIT, "--set", f"seed={seed}", *short)[1] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_the_controller_of_ips_can_be_set(simulate):
    """The published rules miss the booking, the default controller keeps it."""
    path = ROOT / "tests/scenarios/ips.yaml"
    found = {}
    for name in ("default", "printed", "printed-decay"):
        setting = ("--set", f"ips_controller={name}", "--set", "duration_s=15", "--format", "json")
        _, text, _ = simulate(path, *setting)
        ratios = (vm["delivered_ratio"] for vm in json.loads(text)["vms"].values())
        found[name] = max(abs(ratio - 1.0) for ratio in ratios if ratio is not None)

    assert found["default"] < 0.01 < found["printed"]
    assert found["printed-decay"] not in (found["default"], found["printed"])


def test_a_scheduler_in_slots_gives_the_same_kind_of_result(simulate):
    """``slots=true`` for a policy that has one; the keys are those of any other run."""
    named = (CREDIT, "--policy", "aash", "--set", "duration_s=5", "--format", "json")
    status, text, err = simulate(*named, "--set", "slots=true")
    assert (status, err) == (0, "")
    _, other, _ = simulate(*named, "--set", "slots=false")

    ours, theirs = json.loads(text), json.loads(other)
    assert ours.keys() == theirs.keys()
    assert ours["vms"]["vm1"].keys() == theirs["vms"]["vm1"].keys()
    assert ours != theirs


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([ROOT / "nothing.yaml"], "cannot be read: No such file"),
        ([ROOT / "tests"], "cannot be read: Is a directory"),
        (["\0"], "cannot be read"),
        ([SCENARIO, "--policy", "nonesuch"], "choose one of a-dwrr, aash, acfs"),
        ([SCENARIO, "--set", "fair_ratio=1"], "no parameter 'fair_ratio'"),
        ([SCENARIO, "--set", "seed"], "write KEY=VALUE"),
        ([SCENARIO, "--set", "seed=1", "--set", "seed=2"], "given twice"),
        ([SCENARIO, "--set", "seed=-1"], "--set: seed is '-1': give a whole number >= 0"),
        ([SCENARIO, "--set", "duration_s=nan"], "give a number > 0"),
        ([SCENARIO, "--set", "slots=1"], "give true or false"),
        (
            [SCENARIO, "--set", "ips_controller=soft"],
            "ips_controller is 'soft': give one of default, printed",
        ),
        ([CREDIT, "--policy", "acfs", "--set", "slots=true"], "credit, aash or integrated"),
        ([SCENARIO, "--policy", "credit", "--set", "slots=true"], "does not keep bookings"),
        ([SCENARIO, "--format", "xml"], "xml"),
        ([], "SCENARIO"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(simulate, arguments, said):
    """It names the value."""
    assert said in refused(simulate(*arguments))


def test_characters_that_the_terminal_lacks_are_escaped(tmp_path):
    """Names may be in any language."""
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.read_text().replace("on-fast", "sch\u00f6n"))

    done = run_in_process(path, PYTHONIOENCODING="ascii")

    assert (done.returncode, done.stderr) == (0, "")
    assert "sch\\xf6n" in done.stdout


def test_the_bytes_do_not_depend_on_the_process():
    """Results do not depend on hash seeds or addresses."""
    arguments = (CREDIT, "--set", "duration_s=30", "--format", "json")

    texts = {run_in_process(*arguments, PYTHONHASHSEED=seed).stdout for seed in ("0", "77")}

    assert len(texts) == 1
    assert json.loads(texts.pop())["migrations"] > 0


CLOUD = """\
name: small
duration_s: 7200
seed: 3
cloud:
  hosts: [{count: 2, core_types: [{name: slow, count: 2, coefficient: 1.0}]}]
  flavors: [{name: a, extra_specs: {amp:pref_core: 1}}]
  instances_per_host: 3
  lifetime_s: 600
"""


def test_a_cloud_is_simulated_hour_by_hour(simulate, tmp_path):
    """Two hosts hold at most four instances of a core each; others are refused."""
    path = tmp_path / "c.yaml"
    path.write_text(CLOUD)

    status, text, err = simulate(path, "--format", "json")
    found = json.loads(text)
    assert (status, err) == (0, "")
    assert (found["scenario"], found["hosts"], found["bookable_refcores"]) == ("small", 2, 4.0)
    assert [s["at_s"] for s in found["samples"]] == [3600.0, 7200.0]
    assert all(s["booked_refcores"] == s["instances"] <= 4 for s in found["samples"])
    assert found["arrived"] > found["refused"] > 0

    status, table, _ = simulate(path, "--set", "duration_s=3600")
    assert status == 0
    assert "small: 3600 s of 2 hosts" in table


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "slots=true"], "--set slots is not allowed for a cloud: set only"),
        (["--set", "seed=x"], "seed is 'x': give a whole number"),
        (["--policy", "rr"], "--policy is not allowed for a cloud"),
    ],
)
def test_what_a_cloud_does_not_have_is_refused(simulate, tmp_path, options, said):
    """In one sentence."""
    path = tmp_path / "c.yaml"
    path.write_text(CLOUD)

    assert said in refused(simulate(path, *options))
