"""The simulator's model beside reality: throttling, contention and moves between core types.

The same host, guests and policy once as a scenario and once as real guests on one fast and one
really slow core under a real agent. All guests do the same work and count it. Progress is over
that of a guest alone on the slow core, measured before each case. Prints one table; asserts nothing
about its figures. Target: within 3 % by CPU time (see ``tests.benchmarks.progress``). ::

    python -m pytest tests/benchmarks/test_model_real.py -s
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from amp_nova.sim import run as simulation
from amp_nova.sim.commands import inputs
from tests.benchmarks.progress import HEADINGS, Progress, rates, watch
from tests.benchmarks.scale import SLOWED, scaled
from tests.guests.slowcore import SlowCore
from tests.lab import FAST, SLOW, Agent, Lab, opened

pytestmark = pytest.mark.timeout(900)
WARM_UP_S = scaled(10.0, 2.0)
WATCH_S = scaled(40.0, 3.0)
ALONE_S = scaled(4.0, 1.0)
CPUSET = {"fast": str(FAST), "slow": str(SLOW), "": f"{FAST},{SLOW}"}


class Made(NamedTuple):
    """A guest: what it books in reference cores, and the core type that it may use, if only one."""

    booked: str = ""
    only: str = ""


CASES: Mapping[str, tuple[str, Mapping[str, Made]]] = {
    "throttling": ("none", {"onfast": Made("0.4", "fast"), "onslow": Made("0.4", "slow")}),
    "contention": (
        "none",
        {"books": Made("0.3", "slow"), "one": Made("", "slow"), "other": Made("", "slow")},
    ),
    "move": ("rr", {"one": Made(), "other": Made()}),
    "booked move": ("rr", {"books": Made("0.4"), "one": Made(), "other": Made()}),
}
"""The policy, and the guests."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with opened(tmp_path_factory.mktemp("lab")) as made, SlowCore(SLOW, SLOWED):
        print(f"\n{'case':12s} {'guest':8s} predicted  {HEADINGS}")
        yield made


def alone(lab: Lab) -> tuple[float, float]:
    """Rounds a second of a guest alone on the slow core and on the fast one."""
    guest = lab.guest("alone", {}, cpuset=CPUSET[""])
    found = []
    for cpu in (SLOW, FAST):
        guest.pin(0, [cpu], 2)
        found.append(rates({"alone": guest}, ALONE_S)["alone"])
    guest.close()
    return found[0], found[1]


def specs(made: Made) -> dict[str, str]:
    """The extra specs of a guest."""
    return {"amp:pref_core": made.booked} if made.booked else {}


def predicted(case: str, coefficient: float, path: Path) -> dict[str, float]:
    """The progress that the simulator says."""
    policy, guests = CASES[case]
    types = {"slow": 1.0, "fast": coefficient}
    vms = [
        {
            "name": name,
            "extra_specs": {**specs(made), **({"amp:core_type": made.only} if made.only else {})},
        }
        for name, made in guests.items()
    ]
    cores = [{"name": n, "count": 1, "coefficient": round(c, 4)} for n, c in types.items()]
    document = {
        "duration_s": 60,
        "host": {"core_types": cores},
        "vms": vms,
        "policy": policy,
        "agent": {"policy_interval_s": 1.0},
    }
    path.write_text(yaml.safe_dump(document))
    result = simulation.run(inputs.load(path))
    return {name: vm.progress_refcores for name, vm in result.vms.items()}


def measured(lab: Lab, case: str, rounds: tuple[float, float], folder: Path) -> dict[str, Progress]:
    """Progress of every guest; ``rounds``: a second, alone on the slow core and on the fast one."""
    policy, guests = CASES[case]
    started = {
        name: lab.guest(name, specs(made), cpuset=CPUSET[made.only], counter=True)
        for name, made in guests.items()
    }
    more = f"policy = {policy}\npolicy_interval_s = 1.0\n"
    slow, fast = rounds
    agent = Agent(folder, fast / slow, more).start("chrt", "--rr", "1")
    try:
        time.sleep(WARM_UP_S)
        each = dict.fromkeys(started, slow), dict.fromkeys(started, fast)
        return watch(agent, started, WATCH_S, *each)
    finally:
        agent.cli("release", "--all")
        agent.stop()
        lab.clear()


@pytest.mark.parametrize("case", scaled(list(CASES), ["throttling", "move"]))
def test_the_model_beside_reality(lab: Lab, tmp_path: Path, case: str) -> None:
    """One line for every guest."""
    slow, fast = alone(lab)
    model = predicted(case, fast / slow, tmp_path / "scenario.yaml")
    real = measured(lab, case, (slow, fast), tmp_path)
    for name, value in model.items():
        print(f"{case:12s} {name:8s} {value:9.3f} {real[name].beside(value)}")
