"""saez2015: ACFS against earlier policies, on two big and two small cores.

The paper's programs are not available: the mixes here have speedups from its range (1.0 to 4.7) and
a single phase. Its averages can therefore be compared by sign and order only; the optimum of its
model can be compared directly.
"""

import statistics
from collections.abc import Iterator, Sequence

from amp_nova.plugins import load_policy
from amp_nova.sim.report import Result
from amp_nova.sim.reproduce.figure import Figure, guest, host, scenario, steady
from amp_nova.sim.run import run

PAPER = "saez2015"
MIXES = ((4.0, 3.0, 2.0, 1.5), (3.5, 3.2, 1.4, 1.2), (4.7, 2.5, 1.3, 1.1))
BIG = 2
RIVALS = ("eqp", "rr", "a-dwrr")
FACTOR = 1.3
MODEL = "section 3.1 (model)"


def optimum(programs: Sequence[tuple[float, int]], big: int) -> tuple[float, float]:
    """ASP and unfairness at the least slowdown that all programs can share.

    ``programs``: the speedup and the number of threads of each; every thread has a core.
    """
    alone = [1.0 + (s - 1.0) * min(1.0, big / n) for s, n in programs]

    def speeds(slowdown: float) -> list[float]:
        """Mean speed of the threads of each program at this slowdown, if it can have it."""
        return [max(1.0, min(a, a / slowdown)) for a in alone]

    def cores(slowdown: float) -> float:
        """Big cores that all programs need for it."""
        wanted = zip(speeds(slowdown), programs, strict=True)
        return sum(n * (speed - 1.0) / (s - 1.0) for speed, (s, n) in wanted if s > 1.0)

    low, high = 1.0, max(alone)
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if cores(middle) > big else (low, middle)
    found = speeds(high)
    slowdowns = [a / speed for a, speed in zip(alone, found, strict=True)]
    return sum(found) - len(found), max(slowdowns) / min(slowdowns)


def _run(speedups: tuple[float, ...], policy: str, **params: object) -> Result:
    guests = (guest(f"vm{i}", steady(s)) for i, s in enumerate(speedups))
    made = scenario(host(BIG, len(speedups) - BIG, max(speedups)), guests, 600.0)
    return run(made, load_policy(policy, **params))


def _change(found: list[Result], rivals: list[Result], of: str) -> float:
    """Change of a number against a rival in percent, as the geometric mean over the mixes."""
    ratios = [getattr(a, of) / getattr(b, of) for a, b in zip(found, rivals, strict=True)]
    return (statistics.geometric_mean(ratios) - 1.0) * 100.0


def figures() -> Iterator[Figure]:
    """Each figure as soon as it is computed."""
    ours = [_run(mix, "acfs") for mix in MIXES]
    for mix, result in zip(MIXES, ours, strict=True):
        asp, unfairness = optimum([(s, 1) for s in mix], BIG)
        named = ", ".join(f"{s:g}" for s in mix)
        what = f"ACFS, speedups {named}: aggregate speedup"
        yield Figure(PAPER, MODEL, what, f"{asp:.3f}", result.asp or 0.0)
        what = f"ACFS, speedups {named}: unfairness"
        yield Figure(PAPER, MODEL, what, f"{unfairness:.3f}", result.unfairness or 0.0)
        relaxed = _run(mix, "acfs", unfairness_factor=FACTOR)
        what = f"ACFS, speedups {named}: unfairness at UF = {FACTOR:g}"
        most = f"at most {FACTOR * unfairness:.3f}"
        yield Figure(PAPER, MODEL, what, most, relaxed.unfairness or 0.0)
    means = {"unfairness": "-11 % against all three", "asp": "+5 % against all three"}
    for rival in RIVALS:
        theirs = [_run(mix, rival) for mix in MIXES]
        for of, published in means.items():
            what = f"ACFS against {rival}: change of {of}, mean of the mixes"
            yield Figure(PAPER, "figure 1", what, published, _change(ours, theirs, of), "%")
