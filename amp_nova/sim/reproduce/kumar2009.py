"""kumar2009: which I/O work is sensitive to the speed of its core.

The paper prints the CPU utilization and, in its figures, the verdict, but not the network's. Ours
is the network utilization from which on the rule takes the work for insensitive: possible on a line
means at most 100 %.
"""

from collections.abc import Iterator

from amp_nova.profiling.io_overlap import Case, IoUse, Rule, judge
from amp_nova.sim.reproduce.figure import Figure

PAPER = "kumar2009"
WORKLOADS = {
    "figure 5": ("netperf TCP", 0.79, "above 100 %: insensitive"),
    "figure 6": ("ab, four guests", 0.91, "above 100 %: insensitive"),
    "figure 7": ("netperf UDP", 0.65, "below 100 %: sensitive"),
}
"""CPU utilization of the controlling domain, and the verdict."""


def _least_percent(cpu: float) -> float:
    """Network utilization that makes the rule call it insensitive, to a percent."""
    rule = Rule()
    for percent in range(101):
        used, case = IoUse(cpu, cpu, percent / 100.0, 1e6), Case()
        for count in range(rule.confirm):
            case = judge(case, used, rule, float(count), moves=False)
        if case.insensitive:
            return float(percent)
    return float("inf")


def figures() -> Iterator[Figure]:
    """Every one, as it is done."""
    for figure, (workload, cpu, published) in WORKLOADS.items():
        what = f"{workload} at {cpu:.0%} CPU: insensitive from so much network utilization on"
        yield Figure(PAPER, figure, what, published, _least_percent(cpu), "%")
