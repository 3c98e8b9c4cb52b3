# SPDX-License-Identifier: Apache-2.0
"""``amp-nova whatif`` as its user sees it."""

import json
import re

import pytest
import yaml

from tests.support.tables import cells
from tests.unit.lab.commands.refusals import refused

RECORDING = yaml.safe_load("""
name: recorded
duration_s: 30.0
policy: hsp
host:
  reference: slow
  core_types:
    - {name: slow, count: 2, coefficient: 1.0, llc: [0, 0]}
    - {name: fast, count: 1, coefficient: 2.0, llc: [0]}
vms:
  - {name: web, extra_specs: {amp:pref_core: "0.5"}, workload: {utilization: 1.0}}
  - {name: gains, workload: {speedup: {fast: 1.9}}}
  - {name: waits, workload: {speedup: {fast: 1.2}}, start_on: slow}
recorded:
  lasted_s: 30.0
  vms:
    web: {progress_refcores: 0.5, slowdown: 4.0, delivered_ratio: 1.0}
    gains: {progress_refcores: 1.9, slowdown: 1.0, vcpus: [{speedup: 1.9, speedup_error: 0.1}]}
    waits: {progress_refcores: 0.8, slowdown: 1.5, vcpus: [{speedup: 1.2, speedup_error: null}]}
""")
PLAIN = {key: value for key, value in RECORDING.items() if key != "recorded"}
SHORT = {**PLAIN, "duration_s": 5.0}


@pytest.fixture
def ask(tmp_path, amp_nova):
    """Runs it on a document; exit status, output, error."""

    def ask_(*arguments, document=RECORDING):
        path = tmp_path / "host.yaml"
        path.write_text(yaml.safe_dump(document))
        return amp_nova("whatif", path, *arguments)

    return ask_


def answer(ask, *arguments, document=RECORDING):
    status, out, err = ask(*arguments, "--format", "json", document=document)
    assert (status, err) == (0, "")
    return json.loads(out)


def progress(result):
    return {name: vm["progress_refcores"] for name, vm in result["vms"].items()}


def test_another_policy_side_by_side(ask):
    """With hsp one has the fast core, once it is known to gain more; in turns both have half."""
    found = answer(ask, "--policy", "rr")

    assert progress(found["as_is"])["gains"] == pytest.approx(1.9, abs=0.1)
    (then,) = found["would_be"]
    assert then["change"] == "policy rr"
    assert progress(then["result"])["gains"] < progress(found["as_is"])["gains"] - 0.2
    assert progress(then["result"])["web"] == pytest.approx(0.5, abs=0.01)


def test_more_cores_and_another_booking_are_changed_together(ask):
    """A fast core for each of the two, and twice the booking."""
    found = answer(ask, "--core-type", "fast=+1", "--core-type", "slow=+1", "--book", "web=1")

    (then,) = found["would_be"]
    assert then["change"] == "1 more fast, 1 more slow, web books 1"
    web = then["result"]["vms"]["web"]
    assert (web["booked_refcores"], web["delivered_ratio"]) == (1.0, pytest.approx(1.0, abs=0.01))
    assert progress(then["result"])["waits"] == pytest.approx(1.2, abs=0.02)


def test_several_policies_each_have_rows(ask):
    """A table for people, in which each answer has its interval."""
    status, out, _ = ask("--policy", "rr", "--policy", "acfs:unfairness_factor=1.2")

    assert status == 0
    changes = [row[0] for row in cells(out)[1:]]
    assert changes == ["policy rr"] * 3 + ["policy acfs:unfairness_factor=1.2"] * 3
    assert ".." in out
    assert "speedups of waits were never measured" in out
    rows = answer(ask, "--policy", "rr", "-c", "vm", "-c", "then", document=SHORT)
    assert [row["VM"] for row in rows] == ["web", "gains", "waits"]


def width(answer, name):
    """Width of the interval of a VM's progress."""
    low, high = answer["interval"]["vms"][name]["progress_refcores"]
    return high - low


def test_the_interval_has_all_parts(ask):
    """What the simulation of the recorded time is off, and what the speedups may be off."""
    (then,) = answer(ask, "--core-type", "fast=+1")["would_be"]

    # waits was recorded 20 % below what is simulated; nobody measured its speedup, 1.0 to 2.0.
    assert width(then, "waits") > 0.8
    # gains: 0.1 of 1.9 by its speedup, 19 times, and 4 % between simulation and recording.
    assert 0.3 < width(then, "gains") < 0.8
    assert width(then, "web") < 0.05
    low, high = then["interval"]["throughput"]
    assert low < then["result"]["throughput"] < high


def test_a_policy_that_places_at_random_has_a_wide_interval(ask):
    """Over seeds, also of a scenario that is not a recording."""
    random, turns = answer(ask, "--policy", "credit", "--policy", "rr", document=PLAIN)["would_be"]

    assert width(random, "waits") > 2 * width(turns, "waits")
    runs = random["distribution"]["vms"]["waits"]["progress_refcores"]
    assert len(runs) == 20
    interval = random["interval"]["vms"]["waits"]["progress_refcores"]
    assert [runs[0], runs[-1]] == pytest.approx(interval)
    assert runs == sorted(runs)


def test_other_processes_take_their_part(ask):
    """Those that were recorded: 0.6 of three pCPUs, in other runs none or twice as much."""
    document = {**RECORDING, "recorded": {**RECORDING["recorded"], "other_cores": 0.6}}
    plain, found = (
        answer(ask, "--core-type", "fast=+1", document=d) for d in (RECORDING, document)
    )

    alone = progress(plain["as_is"])["gains"]
    assert progress(found["as_is"])["gains"] == pytest.approx(0.8 * alone, rel=0.02)
    alone = progress(plain["would_be"][0]["result"])["gains"]
    (then,) = found["would_be"]
    assert progress(then["result"])["gains"] == pytest.approx(0.85 * alone, rel=0.02)
    low, high = then["interval"]["vms"]["gains"]["progress_refcores"]
    assert low < 0.75 * alone
    assert high > 0.99 * alone


def test_an_instance_may_sleep_for_a_time_or_for_a_share_of_it(ask):
    """It slept half of the time on a slow core, and comes to one that is twice as fast."""
    vm = {"progress_refcores": 0.5, "vcpus": [{"cpu_s": {"slow": 15.0}, "speedup_error": 0.0}]}
    document = {
        **RECORDING,
        "vms": [{"name": "server", "workload": {"speedup": {"fast": 2.0}, "utilization": 0.5}}],
        "recorded": {"lasted_s": 30.0, "vms": {"server": vm}},
    }
    (then,) = answer(ask, "--policy", "acfs", document=document)["would_be"]

    by_work, by_clock = 0.5 / (0.5 / 2 + 0.5), 0.5 * 2
    runs = then["distribution"]["vms"]["server"]["progress_refcores"]
    assert runs[0] == pytest.approx(by_work, abs=0.01)
    assert runs[-1] == pytest.approx(by_clock, abs=0.01)


def test_without_a_recording_the_error_of_the_model_is_not_known(ask):
    """Said, and null for programs."""
    status, out, _ = ask("--policy", "rr", document=SHORT)
    assert status == 0
    assert "the scenario is not a recording" in out

    found = answer(ask, "--policy", "rr", document=SHORT)
    assert found["recorded"] is None
    assert found["model_error_ratio"] is None


def test_a_booking_that_does_not_fit_is_said(ask):
    """Nothing on this host delivers 2 refcores twice, so one gets next to nothing; once it does."""
    _, both, _ = ask("--book", "gains=2", "--book", "waits=2")
    _, one, _ = ask("--book", "gains=2")

    assert re.search("gains would get [01]% of its booking", both)
    assert "would get" not in one


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what is to change"),
        (["--policy", "hps"], "did you mean 'hsp'?"),
        (["--policy", "hsp", "--policy", "hsp"], "hsp is given twice"),
        (["--core-type", "fsat=+1"], "did you mean 'fast'?"),
        (["--core-type", "fast"], "write KEY=VALUE"),
        (["--core-type", "fast=2"], "write fast=+N or fast=-N"),
        (["--core-type", "fast=+4096"], "4096"),
        (["--core-type", "fast=-2"], "core type 'fast' has 1 cores"),
        (["--core-type", "slow=-2"], "leave one core of it"),
        (["--book", "wbe=1"], "did you mean 'web'?"),
        (["--book", "web=much"], "--book web=much is not allowed"),
        (["--book", "web=1", "--book", "web=2"], "web is given twice"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(ask, arguments, said):
    """With the value, and what would be right."""
    assert said in refused(ask(*arguments))


@pytest.mark.parametrize(
    "recorded",
    [
        "much",
        {"vms": {"web": {"progress": 1}}},
        {"vms": {"web": {"vcpus": [{"speedup": 0}]}}},
    ],
)
def test_a_damaged_recording_is_refused_in_a_sentence(ask, recorded):
    """It names the line; the scenario itself is still a scenario."""
    answer = ask("--policy", "rr", document={**PLAIN, "recorded": recorded})

    assert "host.yaml, line" in refused(answer)


SEVERAL = yaml.safe_load("""
host:
  core_types:
    - {name: slow, count: 2, coefficient: 1.0}
    - {name: fast, count: 2, coefficient: 2.0, threads_per_core: 2}
vms:
  - name: two
    vcpus: 2
    workload:
      vcpus:
        - {speedup: {fast: 1.5}, phases: [{for_s: 5, utilization: 1}]}
        - {speedup: null}
recorded:
  vms:
    two:
      progress_refcores: 1.75
      vcpus: [{speedup: 1.5, speedup_error: 0.1}, {speedup: null, speedup_error: null}]
""")


def test_vms_with_several_vcpus_and_hardware_threads(ask):
    """A core comes with its hardware threads; each vCPU has a speedup of its own."""
    document = {**PLAIN, **SEVERAL}
    (then,) = answer(ask, "--core-type", "fast=+1", document=document)["would_be"]

    assert progress(then["result"])["two"] == pytest.approx(1.75, abs=0.05)
    # The first may be 0.1 off, the second gain nothing at all.
    low, high = then["interval"]["vms"]["two"]["progress_refcores"]
    assert low == pytest.approx(1.25, abs=0.15)
    assert high == pytest.approx(1.85, abs=0.15)
