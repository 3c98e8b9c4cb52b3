"""How far off ``amp-nova whatif`` is on real guests. Prints figures; asserts nothing about them.

Guests that count their own work, on one fast and one really slow core, under a real agent: one with
a booking, one that computes and one that waits for memory. One policy is recorded, others are
predicted from the recording alone, then run and measured. Progress is over that of each alone on
the slow core, measured before each run. Target: within 10 % by CPU time (see
``tests.benchmarks.progress``). ::

    python -m pytest tests/benchmarks/test_whatif.py -s
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.progress import HEADINGS, Progress, watch
from tests.benchmarks.scale import SLOWED, scaled
from tests.benchmarks.test_policies_real import MASK, alone
from tests.guests.slowcore import SlowCore
from tests.lab import FAST, SLOW, Agent, Lab, opened

pytestmark = pytest.mark.timeout(1800)
INTERVAL_S = 1.0
WARM_UP_S = scaled(15.0, 1.0)
WATCH_S = scaled(40.0, 2.0)
RECORDED = "acfs"
PREDICTED = scaled(("amp-fair", "hsp", "credit"), ("hsp",))
BOOKED, OTHER = "0.25", "0.5"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with opened(tmp_path_factory.mktemp("lab")) as made, SlowCore(SLOW, SLOWED):
        yield made


def start(lab: Lab, booked: str) -> dict[str, Any]:
    """The three guests; ``booked``: what one of them books."""
    specs = {"books": {"amp:pref_core": booked}, "computes": {}, "waits": {}}
    made = {
        name: lab.guest(name, each, cpuset=f"{FAST},{SLOW}", memory_mib=48, counter=True)
        for name, each in specs.items()
    }
    made["waits"].remember(MASK)
    time.sleep(scaled(2.0, 0.3))  # its pages come
    return made


def agent_of(folder: Path, policy: str) -> Agent:
    """An agent with a policy."""
    more = f"cycle_s = 0.5\npolicy = {policy}\npolicy_interval_s = {INTERVAL_S}\n"
    return Agent(folder, 2.0, more)


def measured(
    guests: dict[str, Any], folder: Path, policy: str, record: Path | None = None
) -> dict[str, Progress]:
    """Progress of every guest under a policy, recorded meanwhile if asked for."""
    slow, fast = alone(guests, SLOW), alone(guests, FAST)
    agent = agent_of(folder, policy).start("chrt", "--rr", "1")
    try:
        time.sleep(WARM_UP_S)
        recorder = recording(agent, record) if record else None
        found = watch(agent, guests, WATCH_S, slow, fast)
        if recorder is not None:
            said, problem = recorder.communicate(timeout=60)
            assert recorder.returncode == 0, problem
            print(said.strip())
        assert agent.cli("release", "--all").returncode == 0
    finally:
        agent.stop()
    return found


def recording(agent: Agent, path: Path) -> "subprocess.Popen[str]":
    """The command that records beside the agent."""
    program = str(Path(sys.executable).with_name("amp-nova"))
    command = [program, "record", "--duration", f"{WATCH_S:g}s", "-o", str(path)]
    return subprocess.Popen(
        [*command, "--config-file", str(agent.config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def whatif(path: Path, *changes: str) -> Any:
    """What the recording says of some changes."""
    program = str(Path(sys.executable).with_name("amp-nova"))
    done = subprocess.run(
        [program, "whatif", str(path), *changes, "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def show(title: str, predicted: Any, errors: Any, found: dict[str, Progress]) -> None:
    """A line for every guest: predicted with its error, measured, and the difference."""
    for name, progress in found.items():
        full = next(n for n in predicted if n.endswith(f"-{name}"))
        value = predicted[full]["progress_refcores"]
        error = errors[full]["progress_refcores"] if errors else None
        sure = "" if error is None else f" +-{error:.3f}"
        print(f"{title:20s} {name:10s} {value:.3f}{sure:8s} {progress.beside(value)}")


def test_other_policies_and_bookings(lab: Lab, tmp_path: Path) -> None:
    """One policy is recorded; others, and another booking, are predicted and then run."""
    path = tmp_path / "host.yaml"
    guests = start(lab, BOOKED)
    found = measured(guests, tmp_path / RECORDED, RECORDED, path)
    (books,) = (g.spec.name for n, g in guests.items() if n == "books")
    policies = [w for p in PREDICTED for w in ("--policy", p)]
    answer = whatif(path, *policies)
    print(f"\n{'':20s} {'':10s} predicted      {HEADINGS}")
    show(f"{RECORDED} (as it is)", answer["as_is"]["vms"], None, found)
    for policy, would in zip(PREDICTED, answer["would_be"], strict=True):
        again = measured(guests, tmp_path / policy, policy)
        show(policy, would["result"]["vms"], would["error"]["vms"], again)
    (would,) = whatif(path, "--book", f"{books}={OTHER}")["would_be"]
    lab.clear()
    again = measured(start(lab, OTHER), tmp_path / "booked", RECORDED)
    show(f"books {OTHER}", would["result"]["vms"], would["error"]["vms"], again)
