"""Are bookings delivered on real guests? Prints figures; asserts nothing about time.

Two real cores, one of them really slow; real QEMU guests under libvirt that count their own work;
a real agent. Delivered capacity is CPU time x coefficient over booked capacity, from the kernel.
The speed of the machine drifts, so windows with the booking alternate with free ones, which measure
the coefficient; work on fast over work on slow is as counted, printed with the drift.
"""

import statistics as st
import time
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scale import SLOWED, scaled
from tests.guests.slowcore import SlowCore
from tests.lab import FAST, SLOW, Agent, Lab, opened

WINDOW_S = scaled(3.0, 0.5)
WINDOWS = scaled(24, 2)
BLOCK = scaled(6, 2)
"""Windows with one coefficient; then the agent is restarted with a newer one."""
FREE_S = scaled(1.0, 0.5)
FREE_WINDOWS = scaled(30, 2)
"""Free windows per coefficient, the latest ones: single ones differ by several percent."""
WARM_UP_S = scaled(1.5, 0.3)
MOVES = scaled(12, 2)
PERIOD_MAX_S = 0.1
BOOKINGS = scaled((0.1, 0.25, 0.5, 0.9), (0.5,))

Reading = tuple[int, int]


def read(guest: Any, vcpu: int = 0) -> Reading:
    """Rounds of work and CPU nanoseconds of one vCPU."""
    return guest.rounds()[vcpu], guest.cpu_ns()[vcpu]


def window(watched: list[tuple[Any, int]], length_s: float = WINDOW_S) -> list[tuple[float, ...]]:
    """Over one window, for every vCPU: rounds a second, CPU share, rounds a CPU second."""
    before = [read(*w) for w in watched]
    begin = time.monotonic()
    time.sleep(length_s)
    after = [read(*w) for w in watched]
    took_s = time.monotonic() - begin
    found = []
    for (rounds, ns), (rounds_after, ns_after) in zip(before, after, strict=True):
        work, cpu_s = rounds_after - rounds, (ns_after - ns) / 1e9
        found.append((work / took_s, cpu_s / took_s, work / cpu_s if cpu_s else 0.0))
    return found


class Free:
    """Two guests without a booking that take turns with the booked ones.

    Their work in windows of their own, between the others, is the machine's coefficient at that
    time: with a coefficient measured once, drift of the machine would count as an error.
    """

    def __init__(self, lab: Lab, booked: list[tuple[Any, int]]) -> None:
        self._booked = list(dict.fromkeys(guest for guest, _ in booked))
        self._own = [lab.guest(f"free{cpu}", {}, cpuset=str(cpu)) for cpu in (FAST, SLOW)]
        for guest in self._own:
            guest.domain.suspend()
        self.ratios: list[float] = []

    def close(self) -> None:
        """Stop both."""
        for guest in self._own:
            guest.close()

    def window(self) -> None:
        """One window in which they run, and the booked ones do not."""
        for guest in self._booked:
            guest.domain.suspend()
        for guest in self._own:
            guest.domain.resume()
        time.sleep(0.1)
        fast, slow = window([(guest, 0) for guest in self._own], FREE_S)
        if slow[2]:  # on a busy machine a guest may not have run within a short window
            self.ratios.append(fast[2] / slow[2])
        for guest in self._own:
            guest.domain.suspend()
        for guest in self._booked:
            guest.domain.resume()
        time.sleep(0.3)

    def coefficient(self) -> float:
        """Fast over slow by the latest windows; printed with its spread."""
        while len(self.ratios) < FREE_WINDOWS:
            self.window()
        latest = self.ratios[-FREE_WINDOWS:]
        low, middle, high = st.quantiles(latest, n=4)
        print(f"coefficient: median {middle:.4f}, half of the windows {low:.4f} to {high:.4f}")
        return middle


def spread(values: list[float]) -> str:
    """Median, standard deviation and range."""
    return (
        f"median {st.median(values):.4f}  mean {st.fmean(values):.4f}  sd {st.pstdev(values):.4f}  "
        f"range {min(values):.4f} to {max(values):.4f}"
    )


def report(
    label: str,
    samples: list[list[tuple[float, ...]]],
    coefficients: list[float],
    neighbours: list[float],
    booked: list[float],
) -> None:
    """Delivered over booked for each vCPU, and its work over that of the other one."""
    for i, name in enumerate(("fast", "slow")):
        speeds = coefficients if i == 0 else [1.0] * len(samples)
        delivered = [s[i][1] * c / booked[i] for s, c in zip(samples, speeds, strict=True)]
        print(f"{label} {name}: delivered/booked  {spread(delivered)}")
    ratio = [s[0][0] / booked[0] / (s[1][0] / booked[1]) for s in samples]
    print(f"{label} work fast/slow per refcore booked  {spread(ratio)}")
    drift = [n / c for n, c in zip(neighbours, coefficients, strict=True)]
    print(
        f"{label} drift: coefficient in the adjacent free windows, over that used  {spread(drift)}"
    )


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with opened(tmp_path_factory.mktemp("lab")) as made, SlowCore(SLOW, SLOWED):
        yield made


def kept(
    lab: Lab, watched: list[tuple[Any, int]], folder: Path
) -> tuple[list[list[tuple[float, ...]]], list[float], list[float]]:
    """Windows with an agent, the coefficient used in each, and that of the adjacent free windows.

    Booked and free windows alternate.
    """
    samples, coefficients, neighbours = [], [], []
    free = Free(lab, watched)
    try:
        for block in range(WINDOWS // BLOCK):
            coefficient = free.coefficient()
            agent = Agent(folder / f"agent{block}", coefficient).start()
            try:
                time.sleep(WARM_UP_S)
                for _ in range(BLOCK):
                    samples.append(window(watched))
                    free.window()
                    neighbours.append(st.fmean(free.ratios[-2:]))
                    coefficients.append(coefficient)
                assert agent.cli("release", "--all").returncode == 0
            finally:
                agent.stop()
    finally:
        free.close()
    return samples, coefficients, neighbours


@pytest.mark.parametrize("refcores", BOOKINGS)
def test_two_guests_on_two_core_types(lab: Lab, tmp_path: Path, refcores: float) -> None:
    """Without the agent speeds differ by the coefficient; with it both deliver the booking."""
    specs = {"amp:pref_core": str(refcores)}
    fast = lab.guest(f"fast{refcores}", specs, cpuset=str(FAST))
    slow = lab.guest(f"slow{refcores}", specs, cpuset=str(SLOW))
    watched = [(fast, 0), (slow, 0)]
    try:
        print(f"\n== booking {refcores} refcores")
        without = window(watched)
        print(f"without the agent: work fast/slow {without[0][0] / without[1][0]:.3f}")
        report(str(refcores), *kept(lab, watched, tmp_path), [refcores] * 2)
    finally:
        fast.close()
        slow.close()


def test_one_guest_on_both_core_types(lab: Lab, tmp_path: Path) -> None:
    """Two vCPUs of one guest on different core types, with bookings of their own."""
    specs = {"amp:pref_core.0": "0.5", "amp:pref_core.1": "0.4"}
    guest = lab.guest("both", specs, vcpus=2, pins={0: str(FAST), 1: str(SLOW)})
    try:
        print("\n== one guest, vCPU 0 (0.5 refcores) fast, vCPU 1 (0.4) slow")
        kept_here = kept(lab, [(guest, 0), (guest, 1)], tmp_path)
        report("two vCPUs", *kept_here, [0.5, 0.4])
    finally:
        guest.close()


@pytest.mark.parametrize("refcores", BOOKINGS)
def test_moves_under_load(lab: Lab, tmp_path: Path, refcores: float) -> None:
    """A move between core types every few seconds: no window gives more than booked + 3 %."""
    guest = lab.guest(f"mover{refcores}", {"amp:pref_core": str(refcores)}, cpuset=f"{FAST},{SLOW}")
    print(f"\n== moves fast <-> slow, booking {refcores}")
    coefficient = 2.1
    agent = Agent(tmp_path, coefficient).start()
    try:
        time.sleep(WARM_UP_S)
        delivered = moves(guest, refcores, coefficient)
        print(f"moves {refcores}: delivered/booked over 3 s windows  {spread(delivered)}")
        print(f"agent: {agent.metric('amp_writes_total')} writes in all")
    finally:
        agent.stop()
        guest.close()


def moves(guest: Any, refcores: float, coefficient: float, count: int = MOVES) -> list[float]:
    """Delivered over booked in windows, with a move in the middle of each.

    Every one is at another moment of the bandwidth period.
    """
    delivered = []
    speed = {FAST: coefficient, SLOW: 1.0}
    on = FAST
    guest.pin(0, [on], 2)
    time.sleep(WARM_UP_S)
    for number in range(count):
        begin, first = time.monotonic(), guest.cpu_ns()[0]
        time.sleep(WINDOW_S / 2 + number / count * PERIOD_MAX_S)
        other = SLOW if on == FAST else FAST
        guest.pin(0, [other], 2)
        moved = guest.cpu_ns()[0]
        time.sleep(max(0.0, begin + WINDOW_S - time.monotonic()))
        last, took_s = guest.cpu_ns()[0], time.monotonic() - begin
        # The counter lags by up to a tick until the move itself brings it up to date: what it
        # gained across the call was on the core that the vCPU came from.
        ref_ns = (moved - first) * speed[on] + (last - moved) * speed[other]
        delivered.append(ref_ns / 1e9 / took_s / refcores)
        on = other
    return delivered
