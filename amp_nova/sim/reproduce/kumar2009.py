"""kumar2009: which I/O work of the controlling domain is sensitive to the clock of its core.

The paper prints the CPU utilization of its three workloads at the highest clock and the throughput
that they keep at half of it, but not their network utilization.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from amp_nova.profiling.io_overlap import Case, IoUse, Rule, judge
from amp_nova.sim.report import VmResultWithIo
from amp_nova.sim.reproduce.experiment import (
    Figure,
    Machine,
    Paper,
    Published,
    Row,
    between,
    exactly,
    guest,
    percent,
    run,
    scenario,
    steady,
)
from amp_nova.sim.scenarios.programs import Io

CLOCKS = 2.3 / 1.15
WORKLOADS: Mapping[str, tuple[float, tuple[float, float]]] = {
    "ab": (0.91, (81.0, 86.0)),
    "netperf TCP": (0.79, (80.0, 85.0)),
    "netperf UDP": (0.65, (75.0, 75.0)),
}
"""CPU utilization (section 2), and the range of the throughput kept at half the clock, in percent,
because sections 3.1 and 3.2 differ."""

OVERLAPPING = ("ab", "netperf TCP")
SPEC = 1.0 / 0.58
"""Speedup of SPEC CPU2006, which keeps 58 % at half the clock (section 3.1)."""
LINE_BYTES_S = 1.25e9

LINE = "a line of which at most 100 % can be used"
BAND = "a margin above 100 % and several intervals in a row keep threads from moving to and fro"
LIKE_SPEC = "the domain's work gains as much from the clock as SPEC does"
OVERLAPS = "ab and TCP overlap wholly and fill the line at the highest clock, UDP does not overlap"
TOO_SIMPLE = (
    "a CPU that is busy for 91 % and needs 1.7 times as long is the bottleneck, overlap or not, so "
    "overlap does not explain what ab and TCP keep; work per packet must fall as packets queue up"
)


def _bytes_s(workload: str, fast: int) -> float:
    """Throughput of a controlling domain alone on one fast core or on one slow core."""
    cpu, _ = WORKLOADS[workload]
    overlaps = workload in OVERLAPPING
    # CPU seconds per byte that give this utilization, on a line of one byte per second.
    on_fast = cpu if overlaps else cpu / (1.0 - cpu)
    io = Io(on_fast * SPEC / LINE_BYTES_S, LINE_BYTES_S, float(overlaps))
    machine = Machine(fast, 1 - fast, CLOCKS)
    guests = [guest("dom0", replace(steady(SPEC), io=io))]
    vm = run(scenario(machine, guests, 30.0), "none").vms["dom0"]
    assert isinstance(vm, VmResultWithIo)
    return vm.io_bytes_s


def _figures_1_to_4() -> Iterator[Row]:
    for workload, (cpu, (low, high)) in WORKLOADS.items():
        loss = between(low - 100.0, high - 100.0, "%")
        published = exactly(low - 100.0, "%") if low == high else loss
        ours = percent(_bytes_s(workload, 0) / _bytes_s(workload, 1))
        what = f"{workload}, {cpu:.0%} CPU: change of throughput at half the clock"
        yield Row(what, published, ours, "%", (LIKE_SPEC, OVERLAPS), TOO_SIMPLE)


def _least_percent(cpu: float) -> float:
    """Lowest network utilization, in percent, at which the rule says insensitive."""
    rule = Rule()
    for tried in range(101):
        used, case = IoUse(cpu, tried / 100.0, 1e6), Case()
        for count in range(rule.confirm):
            case = judge(case, used, rule, float(count), moves=False)
        if case.insensitive:
            return float(tried)
    return 100.0


def _figures_5_to_7() -> Iterator[Row]:
    for workload, (cpu, _) in WORKLOADS.items():
        least = 100.0 * (1.0 - cpu)
        published = Published(f"{least:.0f} % (100 % together)", least, least)
        what = f"{workload}, {cpu:.0%} CPU: network use from which it counts as insensitive"
        yield Row(what, published, _least_percent(cpu), "%", (LINE,), BAND)


PAPER = Paper(
    "kumar2009",
    "Towards better performance per watt in virtual environments on asymmetric multi-core systems",
    (
        Figure("figures 1 to 4", "3", "What I/O work keeps at half the clock", _figures_1_to_4),
        Figure("figures 5 to 7", "3.2", "Combined Usage", _figures_5_to_7),
    ),
    (
        "figure 1, SPEC: an input here",
        "performance per watt: no power is printed, and ours would follow from the power put in",
        "utilizations at the other clocks (figures 2 to 7): images",
    ),
)
