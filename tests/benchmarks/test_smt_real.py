"""What bookings get on CPUs that slow each other down, beside a sleeping and a spinning neighbour.

CPUs 0 and 1 are declared as hardware threads of one core. Two CPUs of a virtual machine may belong
to one core or not, and may move. So while the neighbour spins, interrupts take a part of the time
of the guest's CPU (``SlowCore``): like a busy thread beside it, they leave the guest its CPU time,
in which it gets less done. With ``smt = ignore`` a booking is exact in CPU time: rounds per CPU
second beside a sleeping neighbour are what one core does, and those beside a spinning one, over
them, are the factor. ``smt = shared`` is then told it. Delivered capacity is the guest's own rounds
over those of one core. Prints, asserts nothing.
"""

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from amp_nova.sim.commands import inputs
from amp_nova.sim.run import run
from tests.benchmarks.scale import scaled
from tests.guests.slowcore import SlowCore
from tests.lab import FAST, SLOW, Agent, Lab, opened

TAKEN_RATIO = 0.35
"""What a busy neighbour costs: machines on sale keep 0.55 to 0.75 of a thread's speed."""
WARM_UP_S = scaled(3.0, 1.0)
PHASE_S = scaled(12.0, 1.0)
"""How long the neighbour sleeps, and then spins. All of it counts: the agent notices a change one
cycle late, and pays back what that cost."""
TURNS = scaled(3, 1)
BOOKINGS = scaled((0.25, 0.6), (0.25,))
OWN, NEIGHBOUR = FAST, SLOW


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with opened(tmp_path_factory.mktemp("lab")) as made:
        yield made


def agent_with(folder: Path, mode: str, factor: float) -> Agent:
    """An agent for two threads of one core."""
    made = Agent(folder / mode, 1.0, f"smt = {mode}\n")
    config = made.config.read_text()
    siblings = f"siblings = {OWN}-{NEIGHBOUR}\nsmt_busy_factor = core {factor:.3f}\n"
    config = config.replace(f"fast {OWN} 1.0", f"core {OWN},{NEIGHBOUR} 1.0")
    made.config.write_text(config.replace(f"core_type = slow {NEIGHBOUR} 1.0\n", siblings))
    return made


def watched(agent: Agent, guest: Any, neighbour: Any) -> dict[bool, tuple[float, float, float]]:
    """By whether the neighbour spins: rounds per second, per CPU second, and the agent's ratio."""
    seen: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    neighbour.domain.suspend()
    time.sleep(WARM_UP_S)
    for _, busy in itertools.product(range(TURNS), (False, True)):
        (neighbour.domain.resume if busy else neighbour.domain.suspend)()
        with SlowCore(OWN, TAKEN_RATIO, 250_000) if busy else contextlib.nullcontext():
            began, rounds, cpu_ns = time.monotonic(), guest.rounds()[0], guest.cpu_ns()[0]
            time.sleep(PHASE_S)
            rounds, cpu_ns = guest.rounds()[0] - rounds, guest.cpu_ns()[0] - cpu_ns
            rate = rounds / (time.monotonic() - began)
            said = agent.metric("amp_vcpu_delivered_ratio", domain=guest.spec.name) or 0.0
        seen[busy].append((rate, rounds / cpu_ns * 1e9, said))
    return {
        busy: tuple(statistics.median(values) for values in zip(*runs, strict=True))
        for busy, runs in seen.items()
    }


def predicted(booked: float, mode: str, factor: float, path: Path, *, busy: bool) -> float:
    """What the simulator delivers over the booking; a neighbour that sleeps is left out."""
    core = {"name": "core", "count": 2, "coefficient": 1.0, "threads_per_core": 2}
    vms = [{"name": "booked", "extra_specs": {"amp:pref_core": booked}}]
    document = {
        "duration_s": 60,
        "host": {"core_types": [{**core, "smt_busy_factor": round(factor, 3)}]},
        "vms": [*vms, {"name": "neighbour"}] if busy else vms,
        "agent": {"smt": mode},
    }
    path.write_text(yaml.safe_dump(document))
    return run(inputs.load(path)).vms["booked"].progress_refcores / booked


@pytest.mark.parametrize("booked", BOOKINGS)
def test_what_is_delivered(lab: Lab, tmp_path: Path, booked: float) -> None:
    """Rounds over those of one core over the booking, for both modes and both neighbours."""
    guest = lab.guest("booked", {"amp:pref_core": str(booked)}, cpuset=str(OWN))
    neighbour = lab.guest("neighbour", cpuset=str(NEIGHBOUR))
    factor = 1.0
    try:
        for mode in ("ignore", "shared"):
            agent = agent_with(tmp_path, mode, factor).start("chrt", "--rr", "1")
            try:
                found = watched(agent, guest, neighbour)
            finally:
                agent.stop()
            core = found[False][1]  # in the same run: the speed of the machine drifts
            if mode == "ignore":
                factor = min(found[True][1] / core, 1.0)
                print(
                    f"\nbooked {booked}: one core {core:.0f} rounds a second, factor {factor:.3f}"
                )
            for busy, (rate, speed, said) in found.items():
                does = "spinning" if busy else "sleeping"
                model = predicted(booked, mode, factor, tmp_path / "model.yaml", busy=busy)
                print(
                    f"booked {booked}, smt = {mode}, {does} neighbour: "
                    f"{rate / core / booked:.3f} (agent: {said:.3f}, model: {model:.3f}; "
                    f"speed {speed / core:.3f} of one core)"
                )
    finally:
        lab.clear()
