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

from tests.benchmarks.scale import scaled
from tests.guests.slowcore import SlowCore
from tests.lab import FAST, SLOW, Agent, Lab, opened

TAKEN_RATIO = 0.35
"""What a busy neighbour costs: machines on sale keep 0.55 to 0.75 of a thread's speed."""
WARM_UP_S = scaled(3.0, 1.0)
WATCH_S = scaled(8.0, 1.0)
TURNS = scaled(4, 1)
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
    for _, busy in itertools.product(range(TURNS), (False, True)):
        (neighbour.domain.resume if busy else neighbour.domain.suspend)()
        with SlowCore(OWN, TAKEN_RATIO, 250_000) if busy else contextlib.nullcontext():
            time.sleep(WARM_UP_S)
            began, rounds, cpu_ns = time.monotonic(), guest.rounds()[0], guest.cpu_ns()[0]
            time.sleep(WATCH_S)
            rounds, cpu_ns = guest.rounds()[0] - rounds, guest.cpu_ns()[0] - cpu_ns
            rate = rounds / (time.monotonic() - began)
            said = agent.metric("amp_vcpu_delivered_ratio", domain=guest.spec.name) or 0.0
        seen[busy].append((rate, rounds / cpu_ns * 1e9, said))
    return {
        busy: tuple(statistics.median(values) for values in zip(*runs, strict=True))
        for busy, runs in seen.items()
    }


@pytest.mark.parametrize("booked", BOOKINGS)
def test_what_is_delivered(lab: Lab, tmp_path: Path, booked: float) -> None:
    """Rounds over those of one core over the booking, for both modes and both neighbours."""
    guest = lab.guest("booked", {"amp:pref_core": str(booked)}, cpuset=str(OWN))
    neighbour = lab.guest("neighbour", cpuset=str(NEIGHBOUR))
    core, factor = 0.0, 1.0
    try:
        for mode in ("ignore", "shared"):
            agent = agent_with(tmp_path, mode, factor).start("chrt", "--rr", "1")
            try:
                found = watched(agent, guest, neighbour)
            finally:
                agent.stop()
            if mode == "ignore":
                core, factor = found[False][1], min(found[True][1] / found[False][1], 1.0)
                print(
                    f"\nbooked {booked}: one core {core:.0f} rounds a second, factor {factor:.3f}"
                )
            for busy, (rate, _, said) in found.items():
                does = "spinning" if busy else "sleeping"
                print(
                    f"booked {booked}, smt = {mode}, {does} neighbour: "
                    f"{rate / core / booked:.3f} (agent: {said:.3f})"
                )
    finally:
        lab.clear()
