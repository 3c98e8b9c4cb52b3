# SPDX-License-Identifier: Apache-2.0
"""kumar2009: which I/O work of the controlling domain is sensitive to the clock of its core.

The paper prints the CPU utilization of its three workloads at the highest clock and the throughput
that they keep at half of it, but not their network utilization.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from amp_nova_lab.report import VmResultWithIo
from amp_nova_lab.reproduce.experiment import (
    Figure,
    Inputs,
    Machine,
    Paper,
    Row,
    at_least,
    at_most,
    between,
    exactly,
    guest,
    percent,
    run,
    scenario,
    steady,
)
from amp_nova_lab.scenarios.workload import Io

CLOCKS = 2.3 / 1.15
WORKLOADS: Mapping[str, tuple[float, tuple[float, float]]] = {
    "ab": (0.91, (81.0, 86.0)),
    "netperf TCP": (0.79, (80.0, 85.0)),
    "netperf UDP": (0.65, (75.0, 75.0)),
}
"""CPU utilization (section 2), and the range of the throughput kept at half the clock, in percent,
because sections 3.1 and 3.2 differ."""
OVERLAPPING = ("ab", "netperf TCP")
LINE_BYTES_S = 1.25e9

LIKE_SPEC = "the domain's work gains as much from the clock as SPEC does"
OVERLAPS = "ab and TCP overlap wholly and fill the line at the highest clock, UDP does not overlap"
TOO_SIMPLE = (
    "a CPU that is busy for 91 % and needs 1.7 times as long is the bottleneck, overlap or not, so "
    "overlap does not explain what ab and TCP keep; work per packet must fall as packets queue up"
)
UNMEASURED = (
    "without overlap the two alternate and add up to 100 %; the paper's rest is work of the guest "
    "and the hypervisor, which it does not measure"
)


@dataclass(frozen=True)
class Work(Inputs):
    """What the paper does not print of the controlling domain's work."""

    kept_ratio: float = 0.58
    """Speed that it keeps at half the clock; SPEC's (section 3.1)."""
    overlap_ratio: float | None = None
    """Part of the bytes that is computed on while others are on the line; ``None``: OVERLAPS."""


VARIED = (
    Work(overlap_ratio=0.0),
    Work(overlap_ratio=1.0),
    Work(kept_ratio=0.5),
    Work(kept_ratio=0.8),
)
WRONG = (Work(kept_ratio=1.0),)
"""The clock has no effect."""


@cache
def _used(workload: str, fast: int, inputs: Work) -> tuple[float, float]:
    """Bytes per second and Combined Usage in percent, on one fast core or on one slow core."""
    cpu, _ = WORKLOADS[workload]
    overlap = inputs.overlap_ratio
    if overlap is None:
        overlap = float(workload in OVERLAPPING)
    # CPU seconds per byte that give this utilization, on a line of one byte per second. A byte
    # takes 1 + (1 - overlap) x the CPU's part, which is the shorter one at the highest clock.
    on_fast = cpu / (1.0 - cpu * (1.0 - overlap))
    speedup = 1.0 / inputs.kept_ratio
    io = Io(on_fast * speedup / LINE_BYTES_S, LINE_BYTES_S, overlap)
    machine = Machine(fast, 1 - fast, CLOCKS)
    guests = [guest("dom0", replace(steady(speedup), io=io))]
    vm = run(scenario(machine, guests, 30.0), "none").vms["dom0"]
    assert isinstance(vm, VmResultWithIo)
    return vm.io_bytes_s, 100.0 * vm.combined_usage_ratio


def _figures_1_to_4(inputs: Work) -> Iterator[Row]:
    for workload, (cpu, (low, high)) in WORKLOADS.items():
        loss = between(low - 100.0, high - 100.0, "%")
        published = exactly(low - 100.0, "%") if low == high else loss
        ours = percent(_used(workload, 0, inputs)[0] / _used(workload, 1, inputs)[0])
        what = f"{workload}, {cpu:.0%} CPU: change of throughput at half the clock"
        yield Row(what, published, ours, "%", (LIKE_SPEC, OVERLAPS), TOO_SIMPLE)


def _figures_5_to_7(inputs: Work) -> Iterator[Row]:
    for workload in WORKLOADS:
        for fast, clock in ((1, "the highest clock"), (0, "half of it")):
            ours = _used(workload, fast, inputs)[1]
            what = f"{workload}: Combined Usage at {clock}"
            assumed = (LIKE_SPEC, OVERLAPS)
            if workload in OVERLAPPING:
                above = at_least(100.0, "%", 100.0, "above 100 %")
                yield Row(what, above, ours, "%", assumed)
            else:
                below = at_most(99.0, "%", 100.0, "below 100 %")
                yield Row(what, below, ours, "%", assumed, UNMEASURED)


PAPER = Paper(
    "kumar2009",
    "Towards better performance per watt in virtual environments on asymmetric multi-core systems",
    (
        Figure(
            "figures 1 to 4",
            "3",
            "Throughput at half the clock",
            _figures_1_to_4,
            WRONG,
            Work(),
            VARIED,
        ),
        Figure(
            "figures 5 to 7", "3.2", "Combined Usage", _figures_5_to_7, WRONG, Work(), VARIED[2:]
        ),
    ),
    (
        "figure 1, SPEC: an input here",
        "performance per watt: no power is printed, and ours would follow from the power put in",
        "utilizations at the other clocks (figures 2 to 7): images",
    ),
)
