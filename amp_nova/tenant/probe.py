# SPDX-License-Identifier: Apache-2.0
"""Judges the vCPUs of a server from inside: capacity, limit, contention, speed, and a promise.

Copy this file into a Linux server and run ``python3 probe.py``: it needs Python 3.6 or newer, and
nothing else. Where amp-nova is installed, ``amp-nova probe`` runs the same file.

On each vCPU a process computes and reads the clock. A gap between two readings is time in which the
vCPU did not run. A limit such as CFS bandwidth stops a vCPU that has used its quota until the next
period begins, so those gaps end on a grid of times. Gaps of contention end when a neighbour pauses.
That can be as regular, so the last quarter of the time tests the grid by waking at random times: a
limit lets the vCPU run at once, with its whole quota, and the gaps still end on the grid.
"""

import argparse
import bisect
import cmath
import gc
import json
import math
import os
import platform
import random
import signal
import statistics
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Gaps = list[tuple[float, float]]
    Marks = list[tuple[float, float, int]]
    Losses = dict[int, list[float]]

WORK, FACTOR = "products of two integers of 1,998 bits", 3**1260
GAP_S = 3e-4
"""Shorter gaps are the server's own interrupts."""
GAPS_MIN, PERIOD_MIN_S, PERIOD_MAX_S = 20, 4.5e-3, 1.1
SLACK_S = 8e-3
"""Two ticks of a host with 250 of them a second; less is lost in rounding."""
NAMED_RATIO = 0.01
"""A cause that takes less of the time is not named."""
OWN_RATIO = 0.02
"""Nothing is said of a promise if the server's own other processes take more."""
SHARE, TIME_RATIO = 0.2, 0.99
"""The share of a core that Sovereign Cloud Stack promises, and for how much of the time."""
MEAN_KEPT, SECOND_KEPT = 0.98, 0.95
"""The error of the probe, and what the host's tick moves from one second to the next."""


class Grid(NamedTuple):
    """The times at which the periods of a limit begin; gaps shorter than ``gap_s`` have others."""

    period_s: float
    origin_s: float
    gap_s: float = 0.0

    def number(self, time_s: float) -> int:
        """The number of the period that a time is in."""
        return math.floor((time_s - self.origin_s) / self.period_s)

    def start(self, number: int) -> float:
        """The time at which a period begins."""
        return self.origin_s + number * self.period_s


def busy(
    clock: "Callable[[], float]", until_s: float, factor: int = FACTOR
) -> "tuple[Gaps, Marks]":
    """Compute until a time: start and end of each gap; each second time, lost time and rounds."""
    gaps, marks, lost_s, rounds = [], [], 0.0, 0
    last = now = mark = clock()
    while True:
        if now - last > GAP_S:
            gaps.append((last, now))
            lost_s += now - last
        if now >= mark or now >= until_s:
            marks.append((now, lost_s, rounds))
            mark += 1.0
            if now >= until_s:
                return gaps, marks
        _ = factor * factor
        rounds += 1
        last, now = now, clock()


def coherence(gaps: "Gaps", hz: float, origin_s: float = 0.0) -> complex:
    """The mean direction of the gaps' ends on a circle of one period, weighted by their lengths."""
    turn = 2j * math.pi * hz
    total = sum((end - start) * cmath.exp(turn * (end - origin_s)) for start, end in gaps)
    return total / (sum(end - start for start, end in gaps) or 1.0)


def find_grid(gaps: "Gaps") -> "Grid | None":
    """The grid on which gaps end; beside contention, that of the long ones."""
    if len(gaps) < GAPS_MIN:
        return None
    lengths = sorted(end - start for start, end in gaps)
    long_s = 0.4 * lengths[int(0.95 * len(lengths))]
    close = 0.98
    for gap_s, least in ((0.0, 0.9), (long_s, 0.6)):
        some = [(start, end) for start, end in gaps if end - start >= gap_s]
        grids = [refined(some, hz) for hz in peaks(some)]
        best = max((coherent for coherent, _ in grids), default=0.0)
        if best >= least:
            # Fractions of the period are as coherent, and the peak has sidelobes.
            longest = max(grid.period_s for coherent, grid in grids if coherent > close * best)
            _, grid = max(each for each in grids if abs(each[1].period_s / longest - 1) < 0.05)
            ended = {round((end - grid.origin_s) / grid.period_s) for _, end in some}
            share = len(ended) * grid.period_s / (gaps[-1][1] - gaps[0][0])
            # Gaps of contention between those of a limit may also be close to a finer grid.
            if gap_s or share > 0.9 or best > 0.995:
                return grid._replace(gap_s=gap_s)
        else:
            close = 0.9  # contention also shifts the ends of long gaps
    return None


def window(hz: float, total_s: float) -> float:
    """How long a grid is looked for before it is refined: 32 periods, and at least a second."""
    return min(total_s, max(1.0, 32 / hz))


def peaks(gaps: "Gaps") -> "list[float]":
    """The frequencies at which gaps end coherently in a window."""
    ends, spectrum = [end for _, end in gaps], [(0.0, 0.0)]
    total_s = ends[-1] - gaps[0][0]
    hz = 1 / min(PERIOD_MAX_S, total_s / 4)
    while hz < 1 / PERIOD_MIN_S:
        some = gaps[: bisect.bisect(ends, gaps[0][0] + window(hz, total_s))]
        spectrum.append((abs(coherence(some, hz)), hz))
        hz += 0.25 / window(hz, total_s)
    threes = zip(spectrum, spectrum[1:], [*spectrum[2:], (0.0, 0.0)])
    return [b[1] for a, b, c in threes if b[0] > 0.3 and a[0] <= b[0] > c[0]]


def refined(gaps: "Gaps", hz: float) -> "tuple[float, Grid]":
    """The best grid close to a frequency, and the coherence of all gaps with it."""
    begin_s, total_s = gaps[0][0], gaps[-1][1] - gaps[0][0]
    count = math.ceil(2 * total_s / window(hz, total_s))
    sums = [0j] * count
    for start, end in gaps:
        segment = min(count - 1, int((end - begin_s) / total_s * count))
        sums[segment] += (end - start) * cmath.exp(2j * math.pi * hz * (end - begin_s))

    def size(step: float) -> float:
        """The coherence with a frequency that is off by a quarter of a turn for each step."""
        turn = 2j * math.pi * step / 4 / count
        return abs(sum(each * cmath.exp(turn * at) for at, each in enumerate(sums)))

    step = max(range(-count, count + 1), key=size)
    a, b, c = size(step - 1), size(step), size(step + 1)
    top = (a - c) / (2 * (a - 2 * b + c) or 1.0)  # of the parabola through the three
    hz += (step + max(-1.0, min(1.0, top))) / 4 / total_s
    mean = coherence(gaps, hz, begin_s)
    return abs(mean), Grid(1 / hz, begin_s + cmath.phase(mean) / (2 * math.pi * hz))


def losses(gaps: "Gaps", grid: Grid) -> "Losses":
    """Seconds lost to the limit and to contention in each period, by its number."""
    by_period: Losses = defaultdict(lambda: [0.0, 0.0])
    late_s = GAP_S + 0.02 * grid.period_s
    for start, end in gaps:
        refill_s = grid.start(grid.number(end + late_s))
        turn_s = max(start, end if end - refill_s < late_s else refill_s)
        turn_s = start if refill_s <= start else turn_s
        for cause, a, b in ((0, start, turn_s), (1, turn_s, end)):
            while b - a > 1e-9:
                number = grid.number(a + 1e-9)
                until_s = min(b, grid.start(number + 1))
                by_period[number][cause] += until_s - a
                a = until_s
    return by_period


def delay_s(gaps: "Gaps", marks: "Marks", cores: float) -> float:
    """How far the vCPU was behind a core of this speed at most, beginning at any time."""
    least_s = most_s = behind_s = 0.0
    before_s = marks[0][0]
    for start, end in gaps:
        behind_s += (start - before_s) * (1 - 1 / cores)
        least_s = min(least_s, behind_s)
        behind_s += end - start
        most_s, before_s = max(most_s, behind_s - least_s), end
    return most_s


def limit_cores(lost: "Losses", grid: Grid) -> float:
    """The quota over the period, from the periods in which contention did not decide."""
    inner = [lost.get(number, [0.0, 0.0]) for number in range(min(lost) + 1, max(lost))]
    clear = [by for by in inner if by[0] or by[1] < 0.02 * grid.period_s]
    return 1.0 - sum(map(sum, clear)) / grid.period_s / max(1, len(clear))


class TimedWakeup(NamedTuple):
    """One sleep that ended in a period: how late there, the wait for the vCPU, its run time."""

    late_s: float
    wait_s: float
    run_s: float
    gaps: "Gaps"


class ProbedVcpu(NamedTuple):
    """The clock of a vCPU, and how to sleep and to compute there."""

    clock: "Callable[[], float]"
    sleep: "Callable[[float], None]"
    factor: int = FACTOR

    def wake(self, wake_s: float, until_s: float) -> "tuple[float, Gaps]":
        """Sleep until a time, then compute: when it began, and the gaps."""
        self.sleep(max(0.0, wake_s - self.clock()))
        gaps, marks = busy(self.clock, until_s, self.factor)
        return marks[0][0], gaps

    def wakeups(self, grid: Grid, most_s: "Sequence[float]", until_s: float) -> "list[TimedWakeup]":
        """Wake late in a period, at most by these in turn."""
        spans = max(1, math.ceil(SLACK_S / most_s[0]))
        wakeups: list[TimedWakeup] = []
        while True:
            # A limit may be that of all vCPUs: they draw the same numbers.
            turn = grid.number(self.clock()) // (spans + 2) + 1
            begin_s, end_s = (grid.start(turn * (spans + 2) + 1 + n) for n in (0, spans))
            if end_s + grid.period_s > until_s:
                return wakeups
            late_s = most_s[turn % len(most_s)] * random.Random(turn).random()
            woke_s, gaps = self.wake(begin_s + late_s, end_s + grid.period_s / 4)
            lost_s = sum(min(end, end_s) - min(start, end_s) for start, end in gaps)
            wait_s = woke_s - begin_s - late_s
            run_s = max(0.0, end_s - woke_s - lost_s)
            wakeups.append(TimedWakeup(late_s, wait_s, run_s, gaps))

    def waits(self, grid: Grid, burst_s: float, until_s: float) -> "list[float]":
        """Seconds lost in bursts that are shorter than the quota, at random times of a period."""
        waits: list[float] = []
        while True:
            number = grid.number(self.clock()) + 2
            late_s = (grid.period_s - burst_s) * random.Random(number).random()
            wake_s = grid.start(number) + late_s
            if wake_s + grid.period_s > until_s:
                return waits
            woke_s, gaps = self.wake(wake_s, wake_s + burst_s)
            gaps = [(wake_s, woke_s), *gaps]
            waits.append(sum(end - start for start, end in gaps if end - start > GAP_S))


def fit(points: "Sequence[tuple[float, float]]") -> "tuple[float, float]":
    """The slope of the line through points, and its standard error."""
    x0, y0 = (statistics.mean(values) for values in zip(*points))
    spread = sum((x - x0) ** 2 for x, _ in points)
    slope = sum((x - x0) * (y - y0) for x, y in points) / spread
    squares = sum((y - y0 - slope * (x - x0)) ** 2 for x, y in points)
    return slope, math.sqrt(squares / spread / len(points))


def is_own(vcpu: ProbedVcpu, grid: Grid, lost: "Losses", until_s: float) -> bool:
    """Whether a grid is that of the vCPU's own limit, and not the schedule of neighbours."""
    periods = max(lost) - min(lost) + 1
    idle_s, waits_s = (sum(by[cause] for by in lost.values()) / periods for cause in (0, 1))
    brief, now = idle_s < SLACK_S, vcpu.clock()
    # Within the idle time, a limit leaves the whole quota. Over the whole period, schedules shift.
    most_s = [0.8 * idle_s, grid.period_s]
    wakeups = vcpu.wakeups(grid, most_s, now + (until_s - now) / (2 if brief else 1))
    if len(wakeups) < 3:
        return True
    gaps = [(a, b) for each in wakeups for a, b in each.gaps if b - a >= grid.gap_s]
    if coherence(gaps, 1 / grid.period_s, grid.origin_s).real < 0.3:
        return False
    if brief:
        waits = vcpu.waits(grid, limit_cores(lost, grid) * grid.period_s / 2, until_s)
        return not waits or statistics.mean(waits) < 0.15 * idle_s
    # With its whole quota left, only contention keeps a vCPU that wakes from running. Timers are
    # 0.3 ms late; neighbours that leave the same gaps let it wait for about a tenth of them.
    if statistics.mean(each.wait_s for each in wakeups) > 0.06 * idle_s + waits_s:
        return False
    early = [(each.late_s, each.run_s) for each in wakeups if each.late_s < most_s[0]]
    slope, error = fit(early) if len(early) > 2 else (0.0, 0.0)
    rate = 1 - waits_s / (grid.period_s - idle_s)
    return slope > -0.45 * rate and error < 0.4 * rate


def probed(vcpu: ProbedVcpu, begin_s: float, seconds: float) -> "dict[str, Any]":
    """What a vCPU gets."""
    gaps, marks = busy(vcpu.clock, begin_s + 0.75 * seconds, vcpu.factor)
    total_s, lost_s = marks[-1][0] - marks[0][0], marks[-1][1]
    limit_s, limit, period_s, grid = 0.0, None, None, find_grid(gaps)
    if grid is not None:
        grid = grid._replace(origin_s=begin_s + (grid.origin_s - begin_s) % grid.period_s)
        lost = losses(gaps, grid)
        on_grid_s = sum(by[0] for by in lost.values())
        if on_grid_s > 0.1 * lost_s and is_own(vcpu, grid, lost, begin_s + seconds):
            limit_s, limit, period_s = on_grid_s, limit_cores(lost, grid), grid.period_s
    pairs = [(a, b) for a, b in zip(marks, marks[1:]) if b[0] - a[0] > 0.5]
    shares = [1 - (b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs]
    capacity = 1 - lost_s / total_s
    return {
        "capacity_cores": capacity,
        # The error of a limit that was measured would add up.
        "delay_s": delay_s(gaps, marks, 0.99 * min(capacity, limit or 1.0)),
        "limit_cores": limit,
        "period_s": period_s,
        "lost_to_limit_ratio": limit_s / total_s,
        "lost_to_contention_ratio": (lost_s - limit_s) / total_s,
        "rounds_per_running_s": marks[-1][2] / (total_s - lost_s),
        "cores_by_second": shares,
    }


def in_child(number: int, begin_s: float, seconds: float) -> "dict[str, Any]":
    """What one vCPU gets, and what the server's own kernel says of it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends without a word
    gc.disable()
    os.sched_setaffinity(0, {number})
    time.sleep(max(0.0, begin_s - time.perf_counter()))
    before = [*cpu_seconds(number), time.process_time(), time.perf_counter()]
    result = probed(ProbedVcpu(time.perf_counter, time.sleep), begin_s, seconds)
    after = [*cpu_seconds(number), time.process_time(), time.perf_counter()]
    used_s, steal_s, own_s, wall_s = (b - a for a, b in zip(before, after))
    others = max(0.0, (used_s - own_s) / wall_s)
    return dict(result, vcpu=number, steal_ratio=steal_s / wall_s, other_processes_ratio=others)


def cpu_seconds(number: int) -> "list[float]":
    """CPU time that was used on a vCPU, and steal."""
    with open("/proc/stat") as file:
        ticks = next((x.split()[1:] for x in file if x.startswith(f"cpu{number} ")), ["0"] * 8)
    used = sum(int(ticks[at]) for at in (0, 1, 2, 5, 6))
    return [each / os.sysconf("SC_CLK_TCK") for each in (used, int(ticks[7]))]


def group_limit() -> "list[str]":
    """The CPU limit of a control group of the server itself that the probe is in, in words."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own = Path("/sys/fs/cgroup", controllers, path.lstrip("/"))
        for folder in (own, *own.parents):
            for file in (folder / "cpu.max", folder / "cpu.cfs_quota_us"):
                quota = file.read_text().split() if file.is_file() else ["max"]
                if quota[0] not in ("max", "-1"):
                    return [f"{file} of the server itself limits the probe: {' '.join(quota)}"]
    return []


def report(vcpus: "list[dict[str, Any]]", seconds: float, reference: Any) -> "dict[str, Any]":
    """The results of all vCPUs, as one document."""
    notes = group_limit()
    for each in vcpus:
        speed = each["rounds_per_running_s"] / reference["rounds_per_running_s"] if reference else 1
        parts = [share * speed for share in each["cores_by_second"]]
        seconds_kept = sum(part >= SHARE * SECOND_KEPT for part in parts)
        enough = each["capacity_cores"] * speed >= SHARE * MEAN_KEPT
        each.update(speed=speed if reference else None, scs_seconds_kept=seconds_kept)
        each.update(scs_kept=enough and seconds_kept >= TIME_RATIO * len(parts))
    busiest = max(vcpus, key=lambda v: v["other_processes_ratio"])
    kept: Any = all(each["scs_kept"] for each in vcpus)
    if busiest["other_processes_ratio"] > OWN_RATIO:
        kept, usage = None, f"{busiest['other_processes_ratio']:.0%} of vCPU {busiest['vcpu']}"
        notes.append(f"other processes of the server itself used {usage}: stop them, and run again")
    with open("/proc/cpuinfo") as file:
        models = [line.partition(": ")[2].strip() for line in file if "model name" in line]
    return {
        "server": platform.node(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": seconds,
        "system": f"Linux {platform.release()}, Python {platform.python_version()}",
        "processor": models[0] if models else platform.machine(),
        "work": WORK,
        "rounds_per_running_s": statistics.mean(v["rounds_per_running_s"] for v in vcpus),
        "reference": f"{reference['processor']}, {reference['system']}" if reference else None,
        "scs_kept": kept,
        "vcpus": vcpus,
        "notes": notes,
    }


STATUS = {True: 0, False: 1, None: 2}
"""The exit status: whether the promise was kept."""
VERDICTS = {True: "kept", False: "not kept", None: "no verdict, because of its own processes"}
COLUMNS = "vCPU|cores|worst s|delay|limit|period|to limit|to others|own|steal"


def as_text(document: "dict[str, Any]") -> str:
    """The report for people."""
    rows = [COLUMNS.split("|") + ["speed"] * bool(document["reference"])]
    for v in document["vcpus"]:
        limit, own = v["limit_cores"], v["other_processes_ratio"]
        limits = ["-", "-"] if limit is None else [f"{limit:.3f}", f"{v['period_s'] * 1e3:.1f} ms"]
        others = max(0.0, v["lost_to_contention_ratio"] - own)
        # A host that does not report steal leaves it at 0.
        hidden = not v["steal_ratio"] and v["lost_to_limit_ratio"] + others > OWN_RATIO
        rows.append(
            [
                str(v["vcpu"]),
                f"{v['capacity_cores']:.3f}",
                f"{min(v['cores_by_second']):.3f}",
                f"{v['delay_s'] * 1e3:.0f} ms",
                *limits,
                *(f"{x:.1%}" for x in (v["lost_to_limit_ratio"], others, own)),
                "-" if hidden else f"{v['steal_ratio']:.1%}",
                *([] if v["speed"] is None else [f"{v['speed']:.2f}"]),
            ]
        )
    sizes = [max(map(len, column)) for column in zip(*rows)]
    table = ["  ".join(cell.rjust(size) for cell, size in zip(row, sizes)) for row in rows]
    own_limit = any(v["lost_to_limit_ratio"] >= NAMED_RATIO for v in document["vcpus"])
    taken = [v["lost_to_contention_ratio"] - v["other_processes_ratio"] for v in document["vcpus"]]
    contention = max(taken) >= NAMED_RATIO
    reasons = ["its own limit"] * own_limit + ["contention"] * contention
    worst = min(document["vcpus"], key=lambda v: (v["scs_kept"], v["scs_seconds_kept"]))
    verdict = (
        "Sovereign Cloud Stack (shared-core, 20 % of a core for 99 % of the time): "
        f"{VERDICTS[document['scs_kept']]}. vCPU {worst['vcpu']} had it in "
        f"{worst['scs_seconds_kept']} of {len(worst['cores_by_second'])} seconds."
    )
    head = f"{document['server']}, {document['time']}, all vCPUs busy for {document['seconds']} s"
    lines = [head, f"{document['processor']}, {document['system']}", "", *table, ""]
    lines += [f"The server lost time to {' and '.join(reasons) or 'nothing'}.", verdict]
    if document["reference"]:
        lines.append(f"Speed: {document['work']}; 1 is {document['reference']}.")
    return "\n".join(lines + [f"Note: {note}." for note in document["notes"]])


def duration(text: str) -> int:
    """The value of ``--duration``."""
    if not (text.isdigit() and 10 <= int(text[:4]) <= 600):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 10 to 600")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--duration", metavar="S", type=duration, default=60, help="seconds, by default 60")
    add("--json", action="store_true", help="print the report as JSON")
    add("--reference", metavar="FILE", help="a report as JSON: speed is relative to its server")


def read_reference(path: str) -> "dict[str, Any]":
    """A report that ``--json`` printed; raises ``ValueError``."""
    try:
        document = json.loads(Path(path).read_text())
        if document["work"] == WORK and document["rounds_per_running_s"] > 0:
            return dict(document)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{path} is not a report that this probe printed with --json")


def run(args: argparse.Namespace) -> "tuple[str, bool | None]":
    """The report, and whether the promise was kept, if that is known; raises ``ValueError``."""
    reference = read_reference(args.reference) if args.reference else None
    try:
        numbers, begin_s = sorted(os.sched_getaffinity(0)), time.perf_counter() + 0.5
        with ProcessPoolExecutor(len(numbers)) as pool:
            futures = [pool.submit(in_child, n, begin_s, args.duration) for n in numbers]
            document = report([each.result() for each in futures], args.duration, reference)
    except (OSError, AttributeError, ImportError, BrokenProcessPool) as exc:
        hint = "" if os.access("/dev/shm", os.W_OK) else "; Python needs a writable /dev/shm"
        raise ValueError(f"the vCPUs cannot be measured: {exc}{hint}") from None
    text = json.dumps(document, indent=2) if args.json else as_text(document)
    return text, document["scs_kept"]


def main() -> int:
    """Run the probe as a program."""
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_arguments(parser)
    args = parser.parse_args()
    try:
        text, kept = run(args)
    except ValueError as exc:
        parser.exit(2, f"{parser.prog}: {exc}\n")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    print(text)
    return STATUS[kept]


if __name__ == "__main__":
    sys.exit(main())
