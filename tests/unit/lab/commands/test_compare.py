# SPDX-License-Identifier: Apache-2.0
"""``amp-nova compare`` as its user sees it."""

import functools
import json
import sys

import pytest

from tests.support.tables import cells
from tests.unit.lab.commands.refusals import refused

SCENARIO = """
name: two
duration_s: 400
host:
  core_types:
    - {name: fast, count: 1, coefficient: 2.0}
    - {name: slow, count: 1, coefficient: 1.0}
vms:
  - {name: vm1, workload: {speedup: {fast: 2.0}}}
  - {name: vm2, workload: {speedup: {fast: 1.5}}}
"""


@pytest.fixture
def compare(tmp_path, amp_nova):
    """Runs ``amp-nova compare`` on the scenario; status, output and error."""
    path = tmp_path / "two.yaml"
    path.write_text(SCENARIO)
    return functools.partial(amp_nova, "compare", path)


def test_policies_side_by_side(compare):
    """kwon2011, figure 4 at e = 1.5: throughput and the worst slowdown."""
    status, out, _ = compare(
        "--policy", "amp-fair", "--policy", "amp-vm", "--policy", "amp-r-fair:fair_ratio=0.5",
        "--format", "json",
    )  # fmt: skip

    assert status == 0
    found = {row["policy"]: (row["throughput"], row["slowdown_worst"]) for row in json.loads(out)}
    assert found["amp-fair"] == pytest.approx((1.375, 0.0), abs=0.005)
    assert found["amp-vm"] == pytest.approx((1.5, 0.2), abs=0.005)
    assert found["amp-r-fair:fair_ratio=0.5"] == pytest.approx((1.4375, 0.1), abs=0.005)


def test_beside_a_kernel_that_prefers_fast_pcpus(amp_nova, tmp_path):
    """One VM and ``none``: fast all the time, and on the pCPU where it started without it."""
    path, found = tmp_path / "one.yaml", {}
    for kernel in ("blind", "prefer_fast"):
        text = SCENARIO.replace("host:", f"host:\n  kernel: {kernel}").split("  - {name: vm2")[0]
        path.write_text(text.replace("name: vm1,", "name: vm1, start_on: slow,"))
        _, out, _ = amp_nova("compare", path, "--policy", "none", "--format", "json")
        found[kernel] = json.loads(out)[0]["throughput"]

    assert found == {"blind": 1.0, "prefer_fast": 2.0}


def test_a_table_for_people(compare):
    """A row for every policy, and what the comparison says."""
    _, out, _ = compare("--policy", "acfs", "--policy", "none")

    head, *rows = cells(out)
    assert head[:4] == ["Scenario", "Policy", "Throughput", "ASP"]
    assert [(*row[:2], row[-1]) for row in rows] == [("two", "acfs", "*"), ("two", "none", "")]
    lines = out.splitlines()[6:]
    assert lines[1] == "two: The most throughput and the least unfairness: acfs."
    assert lines[3].startswith("front: * if no other policy is better")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--policy", "amp-most"], "no policy 'amp-most' is installed"),
        (["--policy", "amp-r-fair:fair"], "write NAME or NAME:KEY=VALUE, each key once"),
        (["--policy", "amp-r-fair:fair_ratio=2"], "give a number from 0 to 1"),
    ],
)
def test_bad_input_is_a_sentence(compare, argv, says):
    """It says what is allowed."""
    assert says in refused(compare(*argv))


def test_without_matplotlib_a_plot_says_what_to_install(compare, monkeypatch):
    """The error comes before any run."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    assert "amp-nova[plot]" in refused(compare("--policy", "none", "--plot", "x.png"))


def test_a_plot_is_written(compare, tmp_path):
    """A picture of throughput against unfairness with units, the front by name, and a legend."""
    pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")
    path = str(tmp_path / "x.svg")

    assert compare("--policy", "amp-fair", "--policy", "none", "--plot", path)[0] == 0

    picture = (tmp_path / "x.svg").read_text()
    for text in (
        "unfairness (greatest over least slowdown; 1 is best)",
        "throughput (mean speed; 1 = slowest core type)",
        "* Pareto front: none is better in both",
        "<!-- amp-fair -->",
    ):
        assert text in picture


@pytest.mark.parametrize("path", ["figure", "no/such/folder/figure.png"])
def test_a_plot_that_cannot_be_saved_is_refused_before_any_run(compare, path):
    """The sentence has the value."""
    pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")

    answer = compare("--policy", "none", "--plot", path)

    assert refused(answer).startswith(f"amp-nova: --plot {path!r} ")
