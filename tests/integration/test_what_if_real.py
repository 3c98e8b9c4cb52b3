# SPDX-License-Identifier: Apache-2.0
"""``amp-nova whatif`` on real guests: what it says to a recording, and what then happens.

CPU 1 is half as fast as CPU 0. What is asked is done with new guests and another agent, for as long
as the recording. ``AMP_NOVA_SECONDS=40 python -m pytest tests/integration/test_what_if_real.py``
asks 12 questions, in about a quarter of an hour.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest
import yaml

from tests.guests.slowcore import SlowCore
from tests.support.lab import (
    FAST,
    MEASURED_TIMES,
    SLOW,
    TAKEN_MOST_RATIO,
    Agent,
    Taken,
    undisturbed,
)

SECONDS = float(os.environ.get("AMP_NOVA_SECONDS", "5"))
PROGRESS, NAP_NS = "progress_refcores", 2_000_000
COEFFICIENT, NEAR_RATIO, LOOKS_PER_S = 2.0, 0.1, 50
REAL_TIME = ("chrt", "--rr", "1")
"""As the agent's unit does; others would wait for the guests."""
BOTH, FULL = f"{FAST},{SLOW}", "AMP_NOVA_SECONDS" in os.environ


WORKS, TWO = {"counter": True}, {"counter": True, "vcpus": 2}
BOOKS = {"counter": True, "specs": {"amp:pref_core": "0.25"}}
STATES = {"specs": {"amp:efficiency": "1.2"}}  # as nobody can measure its speedup
MIXES = [
    ("acfs", {"books": BOOKS, "works": WORKS, "states": STATES}, [
        "--core-type fast=-1", "--book books=0.5", "--book books=0",
        "--policy hsp", "--policy amp-fair", "--policy credit",
    ]),
    ("amp-fair", {"books": BOOKS, "two": TWO, "naps": WORKS}, [
        "--policy acfs", "--policy none", "--book books=1.2",
    ]),
    ("rr", {"one": WORKS, "two": WORKS, "three": WORKS}, [
        "--policy acfs", "--policy prop-sp", "--policy none",
    ]),
]  # fmt: skip
"""Policy that is recorded, its guests, and the questions; the first needs no long time."""


def changed(policy, vms, question):
    """What a question asks for: the policy, the guests, and the CPUs that they may use."""
    option, value = question.split()
    if option != "--book":
        return (value, vms, BOTH) if option == "--policy" else (policy, vms, str(SLOW))
    name, _, refcores = value.partition("=")
    specs = {} if refcores == "0" else {"amp:pref_core": refcores}
    return policy, {**vms, name: {**vms[name], "specs": specs}}, BOTH


def amp_nova(*words, prefix=()):
    """What the command prints."""
    command = [*prefix, Path(sys.executable).with_name("amp-nova"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compared(found, recording, used, prefix=""):
    """Whether each guest's progress is near its prediction, and in the interval; printed."""
    (then,), verdicts = found["would_be"], []
    runs = then["distribution"]
    print(f"\n{then['change']} (recorded: {found['as_is']['policy']})")
    for name, cores in used.items():
        vm, known = prefix + name, recording["vms"][prefix + name]
        gains = [vcpu["speedup"] or COEFFICIENT for vcpu in known["vcpus"]]
        got = sum(fast * gain + slow for gain, (fast, slow) in zip(gains, cores, strict=True))
        result, measured = then["result"]["vms"][vm], got / len(cores)
        said, (low, high) = result["progress_refcores"], then["interval"]["vms"][vm][PROGRESS]
        verdicts.append((abs(said - measured) <= NEAR_RATIO * measured, low <= measured <= high))
        print(
            f"  {name}: {said:.3f}, median {median(runs['vms'][vm][PROGRESS]):.3f}, interval "
            f"{low:.3f}..{high:.3f}, measured {measured:.3f}, near, inside {verdicts[-1]}\n"
            f"    recorded {known[PROGRESS]}, simulated {found['as_is']['vms'][vm][PROGRESS]}; on "
            f"fast: recorded {known['fast_share']}, then {result['fast_share']}; vCPUs got (fast, "
            f"slow) {[(round(fast, 4), round(slow, 4)) for fast, slow in cores]}; {known['vcpus']}"
        )
    return verdicts


def calm(measure, *given):
    """What it returns, once this machine's own host has left its CPUs alone meanwhile."""
    for _ in range(MEASURED_TIMES):
        with Taken() as taken:
            found = measure(*given)
        if taken.ratio <= TAKEN_MOST_RATIO:
            break
        print(f"  the host of this virtual machine took {taken.ratio:.1%} of its CPUs")
    return found


@contextmanager
def running(guests, folder, policy, vms, cpuset):
    """New guests, and an agent of their own that has begun to place them."""
    agent = Agent(folder, COEFFICIENT, policy=policy)
    made = {}
    try:
        for name, more in vms.items():
            made[name] = guests.guest(name, cpuset=cpuset, **more)
            made[name].nap(NAP_NS if name == "naps" else 0)
        with undisturbed(made[name]):
            agent.start(*REAL_TIME)
            agent.next_cycle(1)
            yield agent, made
    finally:
        agent.stop()
        guests.clear()


def recorded(agent, policy, path):
    """What ``amp-nova record`` writes beside the scenario."""
    words = ["record", "--duration", f"{SECONDS:g}s", "--force", "-o", path]
    amp_nova(*words, "--config-file", agent.config, prefix=REAL_TIME)
    whole = yaml.safe_load(path.read_text())
    print(f"\nrecorded: {whole['vms']}, {whole['recorded']['other_cores']} other cores")
    assert whole["policy"] == policy, "the agent did not answer"
    return whole["recorded"]


def now(task):
    """CPU time of a thread so far, and the CPU that it is on, from the kernel."""
    ran_ns = int((task / "schedstat").read_text().split()[0])
    return ran_ns, int((task / "stat").read_text().rpartition(")")[2].split()[36])


def watched(made):
    """The cores that each vCPU gets of the fast and of the slow CPU, by guest."""
    tasks = {name: [g.task(i) for i in range(g.spec.vcpus)] for name, g in made.items()}
    last_ns = {task: now(task)[0] for of_guest in tasks.values() for task in of_guest}
    ran_ns, began_s = {task: [0, 0] for task in last_ns}, time.monotonic()
    while (took_s := time.monotonic() - began_s) < SECONDS:
        time.sleep(1 / LOOKS_PER_S)
        for task, before_ns in last_ns.items():
            last_ns[task], cpu = now(task)
            ran_ns[task][cpu] += last_ns[task] - before_ns
    return {n: [[ns / 1e9 / took_s for ns in ran_ns[t]] for t in ts] for n, ts in tasks.items()}


@pytest.mark.measures
@pytest.mark.timeout(3600)
def test_answers_are_near_the_truth_or_their_intervals_contain_it(guests, tmp_path, capsys):
    """All numbers within a tenth, or nine of ten in their intervals: progress by CPU time."""
    verdicts, prefix = [], f"{guests.prefix}-"
    with SlowCore(SLOW, 1.0 - 1.0 / COEFFICIENT), capsys.disabled():
        for number, (policy, vms, questions) in enumerate(MIXES if FULL else MIXES[:1]):
            path = tmp_path / f"{number}.yaml"
            with running(guests, tmp_path / f"{number}", policy, vms, BOTH) as (agent, _):
                recording = calm(recorded, agent, policy, path)
            for question in questions if FULL else questions[:1]:
                words = question.replace("--book ", f"--book {prefix}").split()
                found = json.loads(amp_nova("whatif", path, *words, "--format", "json"))
                folder = tmp_path / f"then{len(verdicts)}"
                with running(guests, folder, *changed(policy, vms, question)) as (_, made):
                    used = calm(watched, made)
                verdicts += compared(found, recording, used, prefix)
        near, inside = (sum(column) for column in zip(*verdicts, strict=True))
        count = len(verdicts)
        print(f"\nof {count} numbers {near} are within a tenth, {inside} in their intervals")
    assert near == count or count - inside <= max(1, count // 10)
