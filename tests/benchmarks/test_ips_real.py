"""Are bookings of instructions per second delivered on real guests? Prints figures only.

Two real cores, one of them really slow; real QEMU guests under libvirt; a real agent with the
real-time priority of its unit, which counts the guests through QEMU's plugin. What was
delivered is measured by the guests themselves: rounds of work times instructions per round, counted
by hand. What they execute without a limit (R) is measured right before, because the speed of the
machine drifts; it only determines the booking, B, and is no part of delivered over booked.

The guests together have eight times the weight of anything else on the machine, which is not idle.
Printed with the result: the share of a core that others took while its guest wanted it; and what
the core gave in a CPU second over the booking: below 1, it cannot deliver the booking.
"""

import contextlib
import itertools
import os
import statistics as st
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scale import SLOWED, scaled
from tests.guests.guest import INSTRUCTIONS_PER_ROUND
from tests.guests.slowcore import SlowCore
from tests.lab import FAST, SLOW, Agent, Lab, cgroup, opened

WINDOW_S = 1.0
RUN_S = scaled(20.0, 2.0)
WARM_UP_S = scaled(3.0, 0.5)
FREE_S = scaled(2.0, 0.5)
RATIOS = scaled((0.05, 0.1, 0.3, 0.5, 0.8), (0.3,))
REAL_TIME = ("chrt", "--rr", "1")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with opened(tmp_path_factory.mktemp("lab")) as made, SlowCore(SLOW, SLOWED, 250_000):
        yield made


@contextlib.contextmanager
def favoured(guest: Any) -> Iterator[None]:
    """Give all guests eight times the kernel's default weight."""
    group = cgroup(guest).parent.parent
    name, weight = (
        ("cpu.shares", "8192") if (group / "cpu.shares").exists() else ("cpu.weight", "800")
    )
    before = (group / name).read_text()
    (group / name).write_text(weight)
    try:
        yield
    finally:
        (group / name).write_text(before)


def taken_s(guest: Any, vcpu: int) -> float:
    """Seconds so far that a vCPU waited for others, not for its limit."""
    for task in Path(f"/proc/{guest.pid}/task").iterdir():
        if (task / "comm").read_text().startswith(f"CPU {vcpu}/"):
            waited_ns = int((task / "schedstat").read_text().split()[1])
    for line in (cgroup(guest, vcpu) / "cpu.stat").read_text().splitlines():
        name, value = line.split()
        if name in ("throttled_time", "throttled_usec"):
            throttled_ns = int(value) * (1 if name == "throttled_time" else 1000)
    return (waited_ns - throttled_ns) / 1e9


def executed(guest: Any) -> tuple[float, ...]:
    """Instructions of every vCPU so far, as counted by the guest itself."""
    return tuple(rounds * INSTRUCTIONS_PER_ROUND for rounds in guest.rounds())


def free_ips(lab: Lab, cpu: int, vcpus: int = 1, seconds: float = FREE_S) -> float:
    """Instructions per second of a counted guest on a core, without a limit."""
    guest = lab.guest(f"free{cpu}", cpuset=str(cpu), counter=True, count="callback" * (vcpus > 1))
    try:
        with favoured(guest):
            time.sleep(0.5)
            before, begin = executed(guest)[0], time.monotonic()
            time.sleep(seconds)
            return (executed(guest)[0] - before) / (time.monotonic() - begin)
    finally:
        guest.close()


def watch(guests: list[Any], seconds: float = RUN_S) -> list[list[float]]:
    """Of every vCPU of these guests: the share that others took, instructions per CPU second, then
    instructions per second of the whole run and of each window."""
    vcpus = [(g, i) for g in guests for i in range(g.spec.vcpus)]
    taken, ran_ns = [taken_s(*v) for v in vcpus], [ns for g in guests for ns in g.cpu_ns()]
    marks = [(time.monotonic(), [i for g in guests for i in executed(g)])]
    while marks[-1][0] < marks[0][0] + seconds:
        time.sleep(max(0.0, marks[0][0] + WINDOW_S * len(marks) - time.monotonic()))
        marks.append((time.monotonic(), [i for g in guests for i in executed(g)]))
    pairs = [(marks[0], marks[-1]), *itertools.pairwise(marks)]
    took_s = marks[-1][0] - marks[0][0]
    ran_s = [
        (b - a) / 1e9 for a, b in zip(ran_ns, [n for g in guests for n in g.cpu_ns()], strict=True)
    ]
    return [
        [
            (taken_s(*vcpu) - taken[i]) / took_s,
            (marks[-1][1][i] - marks[0][1][i]) / ran_s[i],
            *((b[1][i] - a[1][i]) / (b[0] - a[0]) for a, b in pairs),
        ]
        for i, vcpu in enumerate(vcpus)
    ]


def show(label: str, ips: list[float], booked: float) -> None:
    """Print delivered over booked: the run, and the spread of its windows."""
    taken, speed, *rates = ips
    run, *windows = (i / booked for i in rates)
    within = sum(abs(w - 1) <= 0.03 for w in windows) / len(windows)
    print(
        f"{label}: delivered/booked {run:.4f} over {len(windows)} s; windows of 1 s: median "
        f"{st.median(windows):.4f}  sd {st.pstdev(windows):.4f}  range {min(windows):.4f} to "
        f"{max(windows):.4f}  within 3 %: {within:.0%}; others took {taken:.1%}, "
        f"the core gave {speed / booked:.2f}"
    )


def spec(ips: float) -> str:
    """A booking as an extra spec."""
    return f"{ips / 1e6:.3f}M"


def agent(folder: Path) -> Agent:
    return Agent(folder).start(*REAL_TIME)


def cpu_s(made: Agent) -> float:
    """CPU time of the agent so far."""
    assert made.process is not None
    fields = Path(f"/proc/{made.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def costs(made: Agent, before_s: float) -> str:
    """The agent's writes so far, and the share of a core that it used in the run."""
    writes = made.metric("amp_writes_total")
    return f"{writes:.0f} writes, agent {(cpu_s(made) - before_s) / RUN_S:.1%} of a core"


@pytest.mark.parametrize("ratio", RATIOS)
def test_one_vcpu_each_on_two_core_types(lab: Lab, tmp_path: Path, ratio: float) -> None:
    """The same share of what each core gives, on both at once."""
    guests, booked = [], []
    for cpu in (FAST, SLOW):
        booked.append(ratio * free_ips(lab, cpu))
        specs = {"amp:ips": spec(booked[-1])}
        guests.append(lab.guest(f"b{cpu}", specs, cpuset=str(cpu), counter=True))
    made = agent(tmp_path)
    try:
        with favoured(guests[0]):
            time.sleep(WARM_UP_S)
            before_s = cpu_s(made)
            found = watch(guests)
        print(f"\n== B/R {ratio}; {costs(made, before_s)}")
        for name, ips, aim in zip(("fast", "slow"), found, booked, strict=True):
            show(f"{name} {aim / 1e6:.0f}M", ips, aim)
    finally:
        made.stop()
        lab.clear()


@pytest.mark.parametrize("ratios", scaled([(0.2, 0.6), (0.8, 0.3)], [(0.2, 0.6)]), ids=str)
def test_two_vcpus_with_bookings_of_their_own(
    lab: Lab, tmp_path: Path, ratios: tuple[float, float]
) -> None:
    """An AMP VM: vCPU 0 on the fast core, vCPU 1 on the slow one, ``amp:ips.N`` each."""
    booked = [r * free_ips(lab, cpu, 2) for r, cpu in zip(ratios, (FAST, SLOW), strict=True)]
    specs = {f"amp:ips.{i}": spec(aim) for i, aim in enumerate(booked)}
    guest = lab.guest("two", specs, vcpus=2, pins={0: str(FAST), 1: str(SLOW)}, counter=True)
    made = agent(tmp_path)
    try:
        with favoured(guest):
            time.sleep(WARM_UP_S)
            before_s = cpu_s(made)
            found = watch([guest])
        print(f"\n== two vCPUs, B/R {ratios[0]} and {ratios[1]}; {costs(made, before_s)}")
        for index, (ips, aim) in enumerate(zip(found, booked, strict=True)):
            show(f"vCPU {index} {aim / 1e6:.0f}M", ips, aim)
    finally:
        made.stop()
        lab.clear()


@pytest.mark.parametrize("ratio", scaled([0.1, 0.5, 0.8], [0.5]))
def test_moves_between_core_types(lab: Lab, tmp_path: Path, ratio: float) -> None:
    """Every 2.5 s to the other core type; ``ratio`` is of what the slow core gives."""
    booked = ratio * free_ips(lab, SLOW)
    guest = lab.guest("mover", {"amp:ips": spec(booked)}, cpuset=f"{FAST},{SLOW}", counter=True)
    made = agent(tmp_path)
    ended = threading.Event()

    def move() -> None:
        on = FAST
        while not ended.is_set():
            guest.pin(0, [on], 2)
            on = SLOW if on == FAST else FAST
            ended.wait(2.5)

    mover = threading.Thread(target=move)
    try:
        mover.start()
        with favoured(guest):
            time.sleep(WARM_UP_S)
            before_s = cpu_s(made)
            found = watch([guest])
        print(
            f"\n== moves fast <-> slow every 2.5 s, B {ratio} of the slow core; "
            f"{costs(made, before_s)}"
        )
        show(f"{booked / 1e6:.0f}M", found[0], booked)
    finally:
        ended.set()
        mover.join()
        made.stop()
        lab.clear()


def test_what_the_plugin_itself_costs(lab: Lab) -> None:
    """Work per CPU second with the plugin over that without, in turns, on the fast core."""
    print("\n== cost of counting: work per CPU second, counted over uncounted (6 rounds)")
    for label, more in (
        ("one vCPU, inline", {"counter": True}),
        ("one vCPU, callback", {"counter": True, "count": "callback"}),
    ):
        ratios = []
        for _ in range(scaled(6, 1)):
            plain, counted = (speed(lab, **options) for options in ({}, more))
            ratios.append(counted / plain)
        print(f"{label}: median {st.median(ratios):.3f}  {min(ratios):.3f} to {max(ratios):.3f}")


def speed(lab: Lab, **options: Any) -> float:
    """Rounds of work per CPU second."""
    guest = lab.guest("speed", cpuset=str(FAST), **options)
    try:
        time.sleep(0.5)
        before, spent = guest.rounds()[0], guest.cpu_ns()[0]
        time.sleep(scaled(1.5, 0.3))
        return (guest.rounds()[0] - before) / (guest.cpu_ns()[0] - spent) * 1e9
    finally:
        guest.close()
