"""chen2014: integrated scheduling in slots, two fast and six slow cores.

How often its parallel programs meet is not in the paper and decides most; here it is every 20 ms.
What shows and what does not, and why, is in the user guide (policies).
"""

import statistics
from collections.abc import Iterator

from amp_nova.plugins import load_policy
from amp_nova.sim.reproduce.figure import Figure, guest, host, scenario
from amp_nova.sim.slots import run

PAPER = "chen2014"
SIZES = (2, 2, 6, 8)
BARRIER_S = 0.02
GAIN = 1.8
SEEDS = (0, 1)
DURATION_S = 10.0
RIVALS = {"credit": "-23 to -28 %", "aash": "-23 to -25 %"}


def _times(policy: str, parallel: int) -> list[float]:
    """Completion time of each instance, relative."""
    found = []
    for seed in SEEDS:
        guests = (
            guest(f"vm{i}", GAIN, n, barrier_ref_s=BARRIER_S if i == parallel else None)
            for i, n in enumerate(SIZES)
        )
        made = scenario(host(2, 6, GAIN), guests, DURATION_S, seed)
        result = run.run(made, load_policy(policy))
        found.append([1.0 / vm.progress_refcores for vm in result.vms.values()])
    return [statistics.mean(column) for column in zip(*found, strict=True)]


def figures() -> Iterator[Figure]:
    """Every one, as it is done."""
    for parallel in (2, 3):
        ours = _times("integrated", parallel)
        for rival, mean in RIVALS.items():
            theirs = _times(rival, parallel)
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            against = f"against {rival}, {SIZES[parallel]} parallel vCPUs"
            what = f"time of the parallel program {against}"
            change = (ratios[parallel] - 1.0) * 100.0
            yield Figure(PAPER, "section 4", what, "-37 to -48 %", change, "%")
            what = f"mean time {against}"
            change = (statistics.geometric_mean(ratios) - 1.0) * 100.0
            yield Figure(PAPER, "section 4", what, mean, change, "%")
