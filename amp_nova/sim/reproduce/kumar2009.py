"""kumar2009: which I/O work is sensitive to the speed of its core.

The paper gives the CPU utilization and the verdict of each workload, but not the network
utilization. Ours is the lowest network utilization at which the rule calls the work insensitive; a
real line allows at most 100 %.
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
"""Workload, CPU utilization of the controlling domain, and the verdict."""


def _least_percent(cpu: float) -> float:
    """Lowest network utilization, in percent, at which the rule says insensitive."""
    rule = Rule()
    for percent in range(101):
        used, case = IoUse(cpu, cpu, percent / 100.0, 1e6), Case()
        for count in range(rule.confirm):
            case = judge(case, used, rule, float(count), moves=False)
        if case.insensitive:
            return float(percent)
    return float("inf")


def figures() -> Iterator[Figure]:
    """Each figure as soon as it is computed."""
    for figure, (workload, cpu, published) in WORKLOADS.items():
        what = f"{workload} at {cpu:.0%} CPU: insensitive from so much network utilization on"
        yield Figure(PAPER, figure, what, published, _least_percent(cpu), "%")
