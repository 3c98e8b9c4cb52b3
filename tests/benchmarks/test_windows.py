"""How exactly bookings are delivered on real guests: means, and extremes of 3 s and 1 s windows.

Bookings in reference cores are measured in CPU time, times the coefficient of the core; bookings in
instructions per second in instructions, as the guests themselves count them. Both core types are
measured at once, then one guest that moves between them every 3 s. Prints, asserts nothing.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scale import SLOWED, scaled
from tests.benchmarks.test_ips_real import executed, favoured, free_ips, spec, taken_s
from tests.guests.slowcore import SlowCore
from tests.lab import FAST, SLOW, Agent, Lab, opened

WARM_UP_S = scaled(3.0, 0.5)
SECONDS = scaled(20, 3)
STAY_S = 3
COEFFICIENT = 2.0
REFCORES = scaled((0.1, 0.25, 0.5, 0.9), (0.5,))
IPS = scaled((0.05, 0.1, 0.3, 0.5, 0.8), (0.3,))
CASES = [*(("refcores", b) for b in REFCORES), *(("ips", b) for b in IPS)]
Done = Callable[[], float]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with opened(tmp_path_factory.mktemp("lab")) as made, SlowCore(SLOW, SLOWED, 250_000):
        yield made


class CpuTime:
    """Reference-core seconds of a guest so far; it says when it moves."""

    def __init__(self, guest: Any, core: int) -> None:
        self.guest, self.core, self.ref_s = guest, core, 0.0
        self.last_ns = guest.cpu_ns()[0]

    def __call__(self) -> float:
        now_ns = self.guest.cpu_ns()[0]
        worth = COEFFICIENT if self.core == FAST else 1.0
        self.ref_s += (now_ns - self.last_ns) / 1e9 * worth
        self.last_ns = now_ns
        return self.ref_s

    def move(self, core: int) -> None:
        # The counter lags by up to a tick until the move itself brings it up to date.
        self.guest.pin(0, [core], 2)
        self()
        self.core = core


class Instructions:
    """Instructions of a guest so far."""

    def __init__(self, guest: Any, _core: int) -> None:
        self.guest = guest

    def __call__(self) -> float:
        return executed(self.guest)[0]

    def move(self, core: int) -> None:
        self.guest.pin(0, [core], 2)


def seconds(done: list[Done], moves: Any = None) -> list[list[float]]:
    """What was done in each second, of every guest; ``moves`` goes to the other core every 3 s."""
    begin, cores = time.monotonic(), itertools.cycle((SLOW, FAST))
    marks = [(begin, [d() for d in done])]
    for number in range(1, SECONDS + 1):
        time.sleep(max(0.0, begin + number - time.monotonic()))
        marks.append((time.monotonic(), [d() for d in done]))
        if moves is not None and number % STAY_S == 0:
            moves.move(next(cores))
    pairs = list(itertools.pairwise(marks))
    return [
        [(after[1][i] - before[1][i]) / (after[0] - before[0]) for before, after in pairs]
        for i in range(len(done))
    ]


def show(label: str, rates: list[float], booked: float, taken: float, used: float) -> None:
    """Delivered over booked: the mean, and the extremes of 3 s and 1 s windows.

    ``used``: CPU time over time. A booking in Ips that was missed with all of the core in use asked
    for more than the core gave.
    """
    ratios = [r / booked for r in rates]
    three = [sum(ratios[i : i + 3]) / 3 for i in range(len(ratios) - 2)]
    print(
        f"{label:<34} mean {sum(ratios) / len(ratios):.4f}   "
        f"3 s {min(three):.3f} to {max(three):.3f}   1 s {min(ratios):.3f} to {max(ratios):.3f}   "
        f"others took {taken:.1%}, it used {used:.1%}"
    )


def shares(guest: Any, taken_before_s: float, used_before_ns: int) -> tuple[float, float]:
    """What others took from a guest, and what it used, over the time that was measured."""
    taken = taken_s(guest, 0) - taken_before_s
    return taken / SECONDS, (guest.cpu_ns()[0] - used_before_ns) / 1e9 / SECONDS


def booking(lab: Lab, kind: str, ratio: float, core: int) -> tuple[float, dict[str, str]]:
    """What is booked, and the extra specs; Ips are a part of what the core gives."""
    if kind == "refcores":
        return ratio, {"amp:pref_core": str(ratio)}
    booked = ratio * free_ips(lab, core)
    return booked, {"amp:ips": spec(booked)}


def guest_of(lab: Lab, name: str, kind: str, specs: dict[str, str], cpuset: str) -> tuple[Any, Any]:
    """A guest that always wants more, and what measures it."""
    guest = lab.guest(name, specs, cpuset=cpuset, counter=kind == "ips")
    return guest, CpuTime if kind == "refcores" else Instructions


@pytest.mark.parametrize(("kind", "ratio"), CASES, ids=str)
def test_on_both_core_types(lab: Lab, tmp_path: Path, kind: str, ratio: float) -> None:
    """One guest on each, at once."""
    found = []
    for core in (FAST, SLOW):
        booked, specs = booking(lab, kind, ratio, core)
        found.append((core, booked, *guest_of(lab, f"w{core}", kind, specs, str(core))))
    agent = Agent(tmp_path, COEFFICIENT).start("chrt", "--rr", "1")
    try:
        with favoured(found[0][2]):
            time.sleep(WARM_UP_S)
            taken = [(taken_s(g, 0), g.cpu_ns()[0]) for _, _, g, _ in found]
            rates = seconds([measure(g, core) for core, _, g, measure in found])
        print()
        for (core, booked, guest, _), each, before in zip(found, rates, taken, strict=True):
            label = f"{kind} {ratio} {'fast' if core == FAST else 'slow'}"
            show(label, each, booked, *shares(guest, *before))
    finally:
        agent.stop()
        lab.clear()


@pytest.mark.parametrize(("kind", "ratio"), CASES, ids=str)
def test_with_a_move_every_3_s(lab: Lab, tmp_path: Path, kind: str, ratio: float) -> None:
    """One guest; a booking in Ips is a part of what the slow core gives."""
    booked, specs = booking(lab, kind, ratio, SLOW)
    guest, measure = guest_of(lab, "moves", kind, specs, f"{FAST},{SLOW}")
    agent = Agent(tmp_path, COEFFICIENT).start("chrt", "--rr", "1")
    try:
        with favoured(guest):
            guest.pin(0, [FAST], 2)
            time.sleep(WARM_UP_S)
            before, measured = (taken_s(guest, 0), guest.cpu_ns()[0]), measure(guest, FAST)
            (rates,) = seconds([measured], measured)
        print()
        show(f"{kind} {ratio} with moves", rates, booked, *shares(guest, *before))
    finally:
        agent.stop()
        lab.clear()
