# SPDX-License-Identifier: Apache-2.0
"""The probe judges vCPUs of a simulated host as the host itself would, and runs anywhere, alone.

Other seeds of the same cases are as good: raise the ranges below to try more of them.
"""

import ast
import json
import random
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from amp_nova.tenant import probe
from tests.properties.examples import examples
from tests.support.pcpu import Pcpu, Thread

SECONDS = 20.0
PERIODS_S = (0.01, 0.02, 0.05, 0.1)
FILE = Path(probe.__file__)


def limited(draw):
    """A vCPU with a limit, alone."""
    period_s = draw.choice(PERIODS_S)
    return Thread(draw.uniform(0.05, 0.9) * period_s, period_s), []


def busy_neighbours(draw):
    """One to four neighbours that always compute."""
    return Thread(), [Thread() for _ in range(draw.randint(1, 4))]


def irregular_neighbours(draw):
    """One or two neighbours that compute and sleep at random."""

    def burst(r):
        return r.expovariate(1 / 0.006), r.expovariate(1 / 0.01)

    return Thread(), [Thread(burst=burst) for _ in range(draw.randint(1, 2))]


def booked_neighbours(draw):
    """One or two neighbours that come first and have limits of the same period: a regular load."""
    period_s = draw.choice((0.02, 0.1))
    count = draw.randint(1, 2)
    quotas_s = [draw.uniform(0.1, 0.47) * period_s for _ in range(count)]
    return Thread(), [Thread(quota_s, period_s, weight=10.0) for quota_s in quotas_s]


def timers(draw):
    """A neighbour that does the same work at each tick of a timer of its own."""
    period_s, share = draw.choice((0.01, 0.02, 0.04)), draw.uniform(0.1, 0.4)
    burst = (share * period_s, (1 - share) * period_s)
    return Thread(), [Thread(burst=lambda r: burst, weight=3.0)]


def little_is_left(draw):
    """Two neighbours that come first leave a tenth of the core, at the end of each period."""
    return Thread(), [Thread(quota_s, 0.02, weight=10.0) for quota_s in (0.008, 0.01)]


CONTENTION = (busy_neighbours, irregular_neighbours, booked_neighbours, timers, little_is_left)


def judged(make, seed):
    """The vCPU, what the probe says of it, and the share of time in which it ran."""

    def pcpu():
        draw = random.Random(seed)
        own, others = make(draw)
        tick_s, noise_hz = draw.choice((1e-3, 4e-3)), draw.choice((0.2, 10.0, 40.0))
        return Pcpu(own, others, seed, tick_s, noise_hz)

    host = pcpu()
    probe.busy(host.clock, 0.75 * SECONDS, 1)
    host.sleep(0.0)  # accounts for the last run
    share = host.own.run_s / host.now
    host = pcpu()
    found = probe.probed(probe.ProbedVcpu(host.clock, host.sleep, 1), 0.0, SECONDS)
    return host.own, found, share


LIMITED = {
    "capacity_cores": 0.3,
    "delay_s": 0.028,
    "limit_cores": 0.3,
    "period_s": 0.02,
    "lost_to_limit_ratio": 0.7,
    "lost_to_contention_ratio": 0.0,
    "rounds_per_running_s": 500.0,
    "cores_by_second": [0.3] * 45,
}


OWN = {"other_processes_ratio": 0.34}


def document(*found, reference=None):
    """The report of vCPUs."""
    rest = {"steal_ratio": 0.0, "other_processes_ratio": 0.0}
    vcpus = [dict(each, vcpu=n, **rest) for n, each in enumerate(found)]
    return probe.report(vcpus, 60, reference)


@pytest.mark.parametrize("seed", range(examples(6)))
def test_a_limit_and_its_period_are_found(seed):
    """Capacity within 2 %, the period within 5 %, and no contention."""
    own, found, share = judged(limited, seed)

    assert found["capacity_cores"] == pytest.approx(share, rel=0.02)
    assert found["limit_cores"] == pytest.approx(own.quota_s / own.period_s, rel=0.02)
    assert found["period_s"] == pytest.approx(own.period_s, rel=0.05)
    assert found["lost_to_contention_ratio"] < probe.NAMED_RATIO
    assert document(found)["scs_kept"] == (own.quota_s / own.period_s >= 0.2)


@pytest.mark.parametrize("seed", range(examples(2)))
@pytest.mark.parametrize("make", CONTENTION)
def test_contention_is_not_taken_for_a_limit(make, seed):
    """Also if it is as regular as one."""
    _, found, share = judged(make, seed)

    assert found["limit_cores"] is None
    assert found["lost_to_limit_ratio"] == 0.0
    assert found["capacity_cores"] == pytest.approx(share, rel=0.02)
    assert found["lost_to_contention_ratio"] == pytest.approx(1 - share, abs=0.02)


@pytest.mark.parametrize("neighbours", [1, 4])
def test_what_a_promise_needs(neighbours):
    """One busy neighbour leaves more than a fifth of a core, five would leave less."""
    _, found, share = judged(lambda _: (Thread(), [Thread() for _ in range(neighbours)]), 1)
    _, starved, _ = judged(lambda _: (Thread(), [Thread() for _ in range(5)]), 1)

    assert share > 0.19
    assert document(found)["scs_kept"]
    assert not document(starved)["scs_kept"]
    assert not document(found, starved)["scs_kept"]
    assert "vCPU 1 had it in 0 of 15 seconds" in probe.as_text(document(found, starved))


@pytest.mark.parametrize(("cores", "period_s", "neighbours"), [(0.3, 0.02, 1), (0.3, 0.1, 1)])
def test_a_limit_beside_contention(cores, period_s, neighbours):
    """Both are named, each with what it takes."""
    limit = Thread(cores * period_s, period_s)
    _, found, _ = judged(
        lambda _: (Thread(limit.quota_s, period_s), [Thread() for _ in range(neighbours)]), 3
    )

    assert found["limit_cores"] == pytest.approx(cores, rel=0.02)
    assert found["period_s"] == pytest.approx(period_s, rel=0.05)
    assert found["lost_to_limit_ratio"] > 0.35
    assert found["lost_to_contention_ratio"] > 0.02
    assert "lost time to its own limit and contention" in probe.as_text(document(found))


def test_a_free_vcpu_lost_nothing():
    """What the host's own work takes is no contention worth a word."""
    _, found, _ = judged(lambda _: (Thread(), []), 0)
    text = probe.as_text(document(found))

    assert found["capacity_cores"] > 0.99
    assert "The server lost time to nothing." in text
    assert "99 % of the time): kept. vCPU 0 had it in 15 of 15 seconds." in text


def test_one_second_without_a_fifth_of_a_core_breaks_the_promise():
    """99 % of 45 seconds is all of them."""
    for least, kept in ((0.18, False), (0.195, True)):
        assert document(LIMITED | {"cores_by_second": [0.3] * 44 + [least]})["scs_kept"] is kept


def test_load_of_the_server_itself_is_no_contention():
    """A third of a vCPU went to its own processes: no contention, and no verdict."""
    lost = {"capacity_cores": 0.66, "lost_to_contention_ratio": 0.34, "lost_to_limit_ratio": 0.0}
    found = LIMITED | lost | {"limit_cores": None, "cores_by_second": [0.1] * 45}

    judged = probe.report([{**found, "vcpu": 0, "steal_ratio": 0.001, **OWN}], 60, None)
    text = probe.as_text(judged)

    assert (judged["scs_kept"], probe.STATUS[judged["scs_kept"]]) == (None, 2)
    assert "The server lost time to nothing." in text
    assert "no verdict, because of its own processes" in text
    assert "other processes of the server itself used 34% of vCPU 0: stop them, and run" in text
    assert text.splitlines()[4].split()[-4:] == ["0.0%", "0.0%", "34.0%", "0.1%"]


def test_steal_that_the_host_does_not_report_is_unknown():
    """It is 0 then, whatever is lost."""
    assert probe.as_text(document(LIMITED)).splitlines()[4].split()[-1] == "-"


def test_speed_is_relative_to_the_reference():
    """And so is the promised share of a core."""
    reference = {"rounds_per_running_s": 1000.0, "processor": "fast", "system": "Linux 6"}

    alone, beside = (document(LIMITED, reference=each) for each in (None, reference))

    assert alone["scs_kept"]
    assert not beside["scs_kept"]
    row = " ".join(probe.as_text(beside).splitlines()[4].split())
    assert row == "0 0.300 0.300 28 ms 0.300 20.0 ms 70.0% 0.0% 0.0% - 0.50"
    assert "1 is fast, Linux 6." in probe.as_text(beside)


def test_the_delay_is_that_of_the_worst_time_to_begin():
    """It runs 5 ms in every 20, at the begin of the first period and at the end of the next."""
    gaps = [(0.005, 0.035), (0.045, 0.060), (0.065, 0.080)]

    assert probe.delay_s(gaps, [(0.0, 0.0, 0), (0.08, 0.055, 0)], 0.25) == pytest.approx(0.030)
    assert probe.delay_s([], [(0.0, 0.0, 0), (0.08, 0.0, 0)], 1.0) == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_a_period_is_found_within_bounds_or_not_at_all(seed):
    """Also in gaps that mean nothing, and that are few."""
    draw, gaps, now = random.Random(seed), [], 54321.0
    while now < 54321.0 + draw.choice((0.3, 0.75, 3.0)):
        now += draw.expovariate(100.0)
        gaps.append((now, now := now + draw.uniform(0.001, 0.02)))

    grid = probe.find_grid(gaps)

    assert grid is None or 0.9 * probe.PERIOD_MIN_S < grid.period_s < 2 * probe.PERIOD_MAX_S


PROGRAM = f"""
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("probe", {str(FILE)!r})
probe = sys.modules["probe"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(probe)
from argparse import Namespace
from pathlib import Path
args = Namespace(duration=3, json=True, reference=None)  # a busy machine starts it late
text, kept = probe.run(args)
args.reference = sys.argv[1]
Path(args.reference).write_text(text)
print(json.dumps([json.loads(text), probe.run(args)[0], sorted(sys.modules)]))
"""


def test_it_runs_with_the_standard_library_alone(tmp_path):
    """And measures this machine, twice: the second time beside the first."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, tmp_path / "saved"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found, beside, modules = json.loads(done.stdout)

    others = {name.split(".")[0] for name in modules} - sys.stdlib_module_names
    assert others <= {"probe", "__main__", "__mp_main__"}
    for vcpu in found["vcpus"]:
        lost = vcpu["lost_to_limit_ratio"] + vcpu["lost_to_contention_ratio"]
        assert vcpu["capacity_cores"] + lost == pytest.approx(1.0)
        assert vcpu["rounds_per_running_s"] > 1000
    assert json.loads(beside)["reference"] == f"{found['processor']}, {found['system']}"


def test_it_is_written_in_python_3_6():
    """The oldest that guests still have; what it cannot evaluate is quoted."""
    tree = ast.parse(FILE.read_text(), feature_version=(3, 6))
    hints = [
        getattr(node, key, None) for node in ast.walk(tree) for key in ("returns", "annotation")
    ]

    assert hints
    for hint in filter(None, hints):
        assert "[" not in ast.unparse(hint) or isinstance(hint, ast.Constant) or local(tree, hint)


def local(tree, hint):
    """Whether it is the hint of a variable in a function, which is not evaluated."""
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    return any(
        hint is node.annotation
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.AnnAssign)
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--duration", "9"], "argument --duration: '9' is not a whole number from 10 to 600"),
        (["--reference", __file__], "is not a report that this probe printed with --json"),
    ],
)
def test_bad_input_is_one_sentence(words, said):
    """Exit status 2, at once."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", FILE, *words], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("probe.py: ")
    assert said in done.stderr


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"work": 1}'])
def test_a_reference_must_be_a_report(tmp_path, content):
    """What another program wrote is refused before anything is measured."""
    (tmp_path / "other").write_text(content)

    with pytest.raises(ValueError, match="other is not a report that this probe printed"):
        probe.run(Namespace(reference=tmp_path / "other"))
