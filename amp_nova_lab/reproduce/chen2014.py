# SPDX-License-Identifier: Apache-2.0
"""chen2014: integrated scheduling in slots of 10 ms, on two fast and six slow cores.

Machine, guests and test sets are the paper's, but its programs are not: here all of them compute
all the time and gain from a fast core what its clock says, and parallel ones spin at barriers. How
often they meet matters most, and the paper does not say; here it is every 20 ms, which was chosen
so that parallel programs gain what the paper prints. ``aash`` is as printed.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from amp_nova_lab.reproduce.experiment import (
    Figure,
    Inputs,
    Machine,
    Paper,
    Published,
    Row,
    at_least,
    at_most,
    between,
    fitted,
    guest,
    percent,
    run_slots,
    scenario,
    speeds,
    steady,
)
from amp_nova_lab.scenarios.scenario import Scenario

SIZES = (2, 2, 6, 8)
SETS = {"W1": 0, "W2": 1, "W3": 2, "W4": 3}
"""Which guest runs the parallel program."""
CLOCKS = 2.7 / 1.5
SECONDS = 8.0
BEST = (0.6, 0.3)
OTHERS = ((0.2, 0.3), (1.0, 0.3), (0.6, 0.1), (0.6, 0.6))
"""Values of mu and of the threshold."""

CHOSEN = fitted("how often parallel programs meet")
BARRIERS = "parallel programs meet every 20 ms; all programs gain what the clock says"
TWO_VCPUS = (
    "its weight gives each of its two vCPUs a whole core under credit as well, fast or slow by "
    "chance, so nothing is gained by running them at the same time"
)
ZERO_SUM = (
    "every core is busy under credit too, so what one program gains another loses; the paper gives "
    "no reason for its serial gain"
)
NO_COST = (
    "a move between caches costs nothing here; filling 6 MB at 10 GB/s would cost less than 1 % at "
    "6 such moves a second of each vCPU; the paper prints neither its moves nor their cost"
)
EQUAL = "guests of two vCPUs have a core for each of them, so they hardly wait for each other"
SAME_MAPPING = "the initial mapping of W1 is the same with all these values"
MORE_CORES = "eight vCPUs that run at once take the cores of others"
INDEPENDENT = "eight vCPUs that are scheduled independently spin longer for each other"
OFTEN = "the effect grows with how often the vCPUs meet, which is chosen for figure 5"


@dataclass(frozen=True)
class Programs(Inputs):
    """What the paper does not print."""

    barrier_s: float = 0.02
    """Work between two barriers of a parallel program."""


WRONG = tuple(Programs(replaced=policy, wrong="credit") for policy in ("integrated", "aash"))
VARIED = (Programs(barrier_s=0.005), Programs(barrier_s=0.1))


def _relative_times(
    policy: str, made: Scenario, values: tuple[float, float], seed: int
) -> list[float]:
    """Relative completion times of the guests; ``values``: mu and the threshold."""
    params: dict[str, object] = {"printed": "5"} if policy == "aash" else {}
    if policy == "integrated":
        params = {"mu": values[0], "threshold": values[1]}
    result = run_slots(replace(made, seed=seed), policy, **params)
    return [1.0 / speed for speed in speeds(result).values()]


@cache
def _simulated(
    policy: str, parallel: int, gain: float, values: tuple[float, float], inputs: Programs
) -> list[float]:
    guests = [
        guest(f"vm{i}", steady(gain, None, inputs.barrier_s if i == parallel else None), vcpus)
        for i, vcpus in enumerate(SIZES)
    ]
    made = scenario(Machine(2, 6, gain, caches=2), guests, SECONDS)
    return _relative_times(policy, made, values, inputs.seed)


def _times(
    policy: str,
    parallel: int,
    gain: float,
    inputs: Programs,
    values: tuple[float, float] = BEST,
) -> list[float]:
    """Relative completion time of each guest."""
    policy, inputs = inputs.runs(policy), replace(inputs, replaced="")
    inputs = replace(inputs, seed=0) if policy == "integrated" else inputs
    return _simulated(policy, parallel, gain, values, inputs)


def _changes(
    policy: str, rival: str, parallel: int, inputs: Programs, gain: float = CLOCKS
) -> list[float]:
    """Change of each guest's completion time, in percent."""
    times = (_times(p, parallel, gain, inputs) for p in (policy, rival))
    return [percent(a / b) for a, b in zip(*times, strict=True)]


def _mean(changes: list[float]) -> float:
    """Geometric mean of changes in percent."""
    return percent(statistics.geometric_mean(1.0 + c / 100.0 for c in changes))


def _figure_5(inputs: Programs) -> Iterator[Row]:
    means = {"credit": between(-28.0, -23.0, "%"), "aash": between(-25.0, -23.0, "%")}
    for name, at in SETS.items():
        few = TWO_VCPUS if SIZES[at] == 2 else ZERO_SUM
        for rival, published in means.items():
            changes = _changes("integrated", rival, at, inputs)
            against = f"{name}: integrated against {rival}"
            assumed = (BARRIERS,)
            ours = _mean(changes)
            yield Row(f"{against}, mean time", published, ours, "%", assumed, ZERO_SUM)
            shorter, ours = between(-48.0, -37.0, "%"), changes[at]
            kind = CHOSEN if SIZES[at] > 2 else None
            yield Row(f"{against}, parallel program", shorter, ours, "%", assumed, few, kind)
            serial = _mean([c for i, c in enumerate(changes) if i != at])
            least, cause = at_most(-19.0, "%"), MORE_CORES if at == 3 else ZERO_SUM
            yield Row(f"{against}, serial programs", least, serial, "%", assumed, cause)
    for name in ("W3", "W4"):
        close = Published("close", -10.0, 10.0)
        ours = _changes("aash", "credit", SETS[name], inputs)[SETS[name]]
        what = f"{name}: aash against credit, parallel program"
        yield Row(what, close, ours, "%", (BARRIERS,), INDEPENDENT)
    for name, at, program in (("W1", 3, "mcf"), ("W2", 3, "soplex")):
        longer = at_least(1.0, "%", text="longer")
        ours = _changes("aash", "credit", SETS[name], inputs)[at]
        what = f"{name}: aash against credit, {program}"
        yield Row(what, longer, ours, "%", (BARRIERS,), NO_COST)


@cache
def _spread(
    policy: str, parallel: bool, inputs: Programs, values: tuple[float, float] = BEST
) -> float:
    """Standard deviation of SCT of five equal guests with two vCPUs, in percent."""
    workload = steady(CLOCKS, None, inputs.barrier_s if parallel else None)
    guests = [guest(f"vm{i}", workload, 2) for i in range(5)]
    made = scenario(Machine(2, 6, CLOCKS), guests, SECONDS)
    times = _relative_times(inputs.runs(policy), made, values, inputs.seed)
    return 100.0 * statistics.pstdev(time / sum(times) for time in times)


def _figure_6(inputs: Programs) -> Iterator[Row]:
    for parallel in (True, False):
        kind = "parallel" if parallel else "serial"
        ours = {p: _spread(p, parallel, inputs) for p in ("integrated", "aash", "credit")}
        what = f"{kind} programs: standard deviation of SCT"
        most = at_most(2.0, "%")
        yield Row(f"{what}, integrated", most, ours["integrated"], "%", (BARRIERS,))
        greatest = at_least(0.1, "points", text="above the others")
        more = ours["credit"] - max(ours["aash"], ours["integrated"])
        yield Row(f"{what}, credit less the others", greatest, more, "points", (BARRIERS,))
        what = f"{what}, aash less integrated"
        more = ours["aash"] - ours["integrated"]
        close = Published("close to integrated", -0.5, 0.5)
        if parallel:
            close = at_least(0.5, "points", text="worse than integrated")
        yield Row(what, close, more, "points", (BARRIERS,), EQUAL)


def _figure_7(inputs: Programs) -> Iterator[Row]:
    for name, at in SETS.items():
        changes = _changes("integrated", "credit", at, inputs, 1.0)
        few = TWO_VCPUS if SIZES[at] == 2 else OFTEN
        shorter = between(-20.0, -17.0, "%")
        what = f"{name}: integrated against credit"
        named = f"{what}, parallel program"
        yield Row(named, shorter, changes[at], "%", (BARRIERS,), few)
        serial = _mean([c for i, c in enumerate(changes) if i != at])
        most = at_most(2.0, "%")
        yield Row(f"{what}, serial programs", most, serial, "%", (BARRIERS,), MORE_CORES)
    for name, at, program in (("W1", 3, "mcf"), ("W2", 3, "soplex")):
        changes = _changes("aash", "credit", SETS[name], inputs, 1.0)
        what = f"{name}: aash against credit, {program}"
        longer = between(18.0, 20.0, "%")
        yield Row(what, longer, changes[at], "%", (BARRIERS,), NO_COST)
        serial = _mean([c for i, c in enumerate(changes) if i not in (at, SETS[name])])
        what = f"{name}: aash against credit, programs that compute"
        small = Published("small", -2.0, 5.0)
        yield Row(what, small, serial, "%", (BARRIERS,), ZERO_SUM)


def _figures_8_and_9(inputs: Programs) -> Iterator[Row]:
    best = _times("integrated", 0, CLOCKS, inputs)
    for values in OTHERS:
        what = f"W1, mu = {values[0]:g}, threshold = {values[1]:g}: mean time against 0.6 and 0.3"
        times = _times("integrated", 0, CLOCKS, inputs, values)
        slower = _mean([percent(a / b) for a, b in zip(times, best, strict=True)])
        small = Published("slower, but not much", 0.1, 10.0)
        yield Row(what, small, slower, "%", (BARRIERS,), SAME_MAPPING)
    for values in OTHERS:
        what = f"SCT, mu = {values[0]:g}, threshold = {values[1]:g}: change of its deviation"
        ours = _spread("integrated", True, inputs, values) - _spread("integrated", True, inputs)
        none = Published("no effect", -0.1, 0.1)
        yield Row(what, none, ours, "points", (BARRIERS,))


PAPER = Paper(
    "chen2014",
    "An integrated scheduling algorithm for virtual machine systems on asymmetric processors",
    (
        *(
            Figure(name, section, title, rows, WRONG, Programs(), VARIED, random=True)
            for name, section, title, rows in (
                ("figure 5", "4.2.1", "Completion times of W1 to W4", _figure_5),
                ("figure 6", "4.2.2", "Fairness of five equal guests", _figure_6),
                ("figure 7", "4.2.3", "Eight equal cores", _figure_7),
            )
        ),
        Figure("figures 8 and 9", "4.2.4", "Parameters", _figures_8_and_9, WRONG, Programs()),
    ),
    ("bars of figures 5 to 9: images; the rows compare what the text says of them",),
)
