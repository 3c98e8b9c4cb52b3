"""kwon2011: fast cores shared by efficiency, evenly, and in between.

Figure 4 is a calculation for one fast and one slow core. The mix 8M-4L has four fast cores, eight
guests that gain much from them and four that gain less. The paper does not give speedups: that of
the eight follows from the greatest slowdown; that of the four is ours and does not affect it.
"""

from collections.abc import Iterator

from amp_nova.plugins import load_policy
from amp_nova.sim.reproduce.figure import Figure, guest, host, scenario, steady
from amp_nova.sim.run import run
from amp_nova.sim.scenarios.scenario import Scenario

PAPER = "kwon2011"
FIGURE_4 = {1.0: (1.5, 1.375, 1.25), 1.5: (1.5, 1.4375, 1.375), 2.0: (1.5, 1.5, 1.5)}
"""Throughput at R of 0, 50 and 100 %, by the second guest's speedup; the first has 2."""
GREATEST_LOSS_PERCENT = 13.89
LOSS_BY_R = {0.2: 11.93, 0.4: 10.4, 0.6: 9.36, 0.8: 6.19}
"""Greatest slowdown against fair sharing of 8M-4L, in percent, at R of 0 and above."""
MEDIUM_SPEEDUP = 3.0 / (1.0 - GREATEST_LOSS_PERCENT / 100.0) - 2.0
"""Solves the loss of a guest that only runs on slow cores, 1 - 3 / (s + 2), for s."""
LOW_SPEEDUP = 1.1


def _speeds(made: Scenario, ratio: float) -> tuple[float | None, dict[str, float]]:
    result = run(made, load_policy("amp-r-fair", fair_ratio=ratio))
    return result.throughput, {name: vm.progress_refcores for name, vm in result.vms.items()}


def figures() -> Iterator[Figure]:
    """Each figure as soon as it is computed."""
    for other, published in FIGURE_4.items():
        pair = (guest("first", steady(2.0)), guest("other", steady(other)))
        made = scenario(host(1, 1, 2.0), pair, 600.0)
        for ratio, value in zip((0.0, 0.5, 1.0), published, strict=True):
            found, _ = _speeds(made, ratio)
            what = f"throughput, speedups 2 and {other:g}, R = {ratio:.0%}"
            yield Figure(PAPER, "figure 4", what, f"{value:g}", found or 0.0)
    guests = (
        *(guest(f"medium-{i}", steady(MEDIUM_SPEEDUP)) for i in range(8)),
        *(guest(f"low-{i}", steady(LOW_SPEEDUP)) for i in range(4)),
    )
    made = scenario(host(4, 8, 2.375), guests, 600.0)
    _, fair = _speeds(made, 1.0)
    for ratio, percent in LOSS_BY_R.items():
        _, speeds = _speeds(made, ratio)
        worst = max(1.0 - speed / fair[name] for name, speed in speeds.items())
        what = f"greatest slowdown of 8M-4L against fair, R = {ratio:.0%}"
        yield Figure(PAPER, "section 4.3", what, f"{percent:g} %", worst * 100.0, "%")
