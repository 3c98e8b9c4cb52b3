"""kumar2009: which I/O work of the controlling domain is sensitive to the clock of its core.

The paper prints the CPU utilization of its three workloads at the highest clock and what they keep
at half of it, but not their network utilization.
"""

from collections.abc import Iterator, Mapping

from amp_nova.profiling.io_overlap import Case, IoUse, Rule, judge, least_kept_ratio
from amp_nova.sim.reproduce.figure import Figure, Paper, Published, Row, between, exactly

CLOCKS = 2.3 / 1.15
WORKLOADS: Mapping[str, tuple[float, tuple[float, float]]] = {
    "ab": (0.91, (81.0, 86.0)),
    "netperf TCP": (0.79, (80.0, 85.0)),
    "netperf UDP": (0.65, (75.0, 75.0)),
}
"""CPU utilization (section 2), and the throughput kept at half the clock, in percent: sections 3.1
and 3.2 differ in it."""

LINE = "a line of which at most 100 % can be used"
BAND = "a margin above 100 % and several intervals in a row keep threads from moving to and fro"
OVERLAP = (
    "the bound is for I/O that waits for the CPU; how much of the loss overlap hides does not "
    "follow from utilizations"
)


def _figures_1_to_4() -> Iterator[Row]:
    for workload, (cpu, (low, high)) in WORKLOADS.items():
        published = (
            exactly(low - 100.0, "%") if low == high else between(low - 100, high - 100, "%")
        )
        ours = (least_kept_ratio(IoUse(cpu, cpu, None, 0.0), CLOCKS) - 1.0) * 100.0
        what = f"{workload}, {cpu:.0%} CPU: change of throughput at half the clock, without overlap"
        yield Row(what, published, ours, "%", (), OVERLAP)


def _least_percent(cpu: float) -> float:
    """Lowest network utilization, in percent, at which the rule says insensitive."""
    rule = Rule()
    for percent in range(101):
        used, case = IoUse(cpu, cpu, percent / 100.0, 1e6), Case()
        for count in range(rule.confirm):
            case = judge(case, used, rule, float(count), moves=False)
        if case.insensitive:
            return float(percent)
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
        "figure 1, SPEC: measurements of its machine",
        "performance per watt: the paper prints neither power nor energy",
        "utilizations at the other clocks (figures 2 to 7): images",
    ),
)
