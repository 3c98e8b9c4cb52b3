# SPDX-License-Identifier: Apache-2.0
"""teabe2017: the same work in the same time, whatever core types a guest's vCPUs run on.

Its machine: fast cores of 2.2 GHz, slow ones of 1.2 GHz. Times are relative to the baseline, which
for solution 1 is a whole slow core (bookings of 1 p_ref) and for solution 2 the booked 50 million
instructions per second. Without a solution every vCPU has a whole core.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from amp_nova.agent.loop import LoopSettings
from amp_nova_lab.printed_controller import LOOPS
from amp_nova_lab.report import VmResultWithRequests
from amp_nova_lab.reproduce.experiment import (
    Figure,
    Inputs,
    Machine,
    Paper,
    Published,
    Row,
    exactly,
    fitted,
    guest,
    identity,
    run,
    scenario,
    speeds,
    steady,
)
from amp_nova_lab.scenarios.workload import Requests

CLOCKS = 2.2 / 1.2
REFERENCE_IPS = 1.2e9
VCPUS = 4
SECONDS = 60.0
CORE: Mapping[str, str] = {"amp:pref_core": "1"}
IPS: Mapping[str, str] = {"amp:ips": "50M"}
MEMORY_BOUND = 1.2
SPEEDS = (CLOCKS, 1.5, MEMORY_BOUND)
"""Speedups of three programs, from computing only to mostly waiting for memory."""
SINGLE = (0, 1)
"""Fast cores of a program with one thread."""
BLAST = (0, 1, 2, 3, 4)

QUEUE = "random arrivals and work per request; 0.844 ms of a slow core, at a load of 98.68 %"
SATURATED = (
    "so close to saturation a queue takes many seconds to fill and to forget, so the median of a "
    "run of 20 s that starts without requests is too low and uncertain"
)
SAME_SPEED = identity("the limit divides by the coefficient, which is the speedup of this program")
NO_JITTER = "limits hold at any moment, without the jitter of a bandwidth period"
DIVIDED = "Blast's threads take its work in small pieces, so all end together"
PROGRAMS = "speedups of three programs: 1.83, 1.5 and 1.2"
ONE_INSTRUCTION_A_CYCLE = "one instruction per cycle on a slow core"
CONTRADICTS = (
    "a fast core's limit is set by its clock, so a program that gains less than the clock is "
    "slower there; the paper's equation 1 implies the same, but its figure does not show it"
)
PRINTED_RULE = (
    "equation 2, in either reading, lets a vCPU run for whole periods, so at 50 million of 1.2 and "
    "2.2 billion it gets several times its booking, and more on a fast core"
)


@dataclass(frozen=True)
class Core(Inputs):
    """A fast core as the agent takes it."""

    coefficient: float = CLOCKS

    @property
    def machine(self) -> Machine:
        """The host, with four cores of each type."""
        return Machine(4, 4, self.coefficient, reference_ips=REFERENCE_IPS)


WRONG_COEFFICIENT = 1.5


@cache
def _times(inputs: Core, fast: int, vcpus: int, speedup: float, solution: str) -> float:
    """Time of a program over its baseline, with ``fast`` of its vCPUs on fast cores.

    ``solution``: none, ``1``, or the controller of solution 2.
    """
    counted = solution in LOOPS
    where = ["fast"] * fast + ["slow"] * (vcpus - fast)
    guests = [
        guest(
            f"vcpu{i}", steady(speedup), 1, {**(IPS if counted else CORE), "amp:core_type": on}, on
        )
        for i, on in enumerate(where)
    ]
    made = replace(
        scenario(inputs.machine, guests, SECONDS),
        ips_controller=solution if counted else "default",
        agent=LoopSettings(dry_run=not solution),
    )
    booked = 50e6 / REFERENCE_IPS if counted else 1.0
    return booked / statistics.mean(speeds(run(made, "none")).values())


def _distinct(times: list[float]) -> int:
    """How many different times there are, to 1 %."""
    return len({round(t, 2) for t in times})


def _figure_2(inputs: Core) -> Iterator[Row]:
    none = [_times(inputs, fast, 1, CLOCKS, "") for fast in SINGLE]
    what = "one thread, no solution: different times"
    yield Row(what, exactly(2), float(_distinct(none)))
    none = [_times(inputs, fast, VCPUS, CLOCKS, "") for fast in BLAST]
    what = "Blast, no solution: different times"
    yield Row(what, exactly(5), float(_distinct(none)), "", (DIVIDED,))
    for name, solution, cause in (
        ("solution 1", "1", CONTRADICTS),
        ("solution 2, old = 0 when blocked", "printed", PRINTED_RULE),
        ("solution 2, old decays", "printed-decay", PRINTED_RULE),
    ):
        for speedup in SPEEDS:
            times = [_times(inputs, fast, 1, speedup, solution) for fast in SINGLE]
            what = f"one thread of speedup {speedup:.3g}, {name}: greatest time over the baseline"
            assumed = (PROGRAMS, *((ONE_INSTRUCTION_A_CYCLE,) if solution != "1" else ()))
            exact = SAME_SPEED if solution == "1" and speedup == CLOCKS else None
            yield Row(what, SAME, _furthest(times), "", assumed, cause, exact)
        times = [_times(inputs, fast, VCPUS, CLOCKS, solution) for fast in BLAST]
        what = f"Blast, {name}: greatest time over the baseline"
        exact = SAME_SPEED if solution == "1" else None
        yield Row(what, SAME, _furthest(times), "", (DIVIDED,), cause, exact)


def _furthest(times: list[float]) -> float:
    """The time that is furthest from the baseline."""
    return max(times, key=lambda time: abs(time - 1.0))


@dataclass(frozen=True)
class Queue(Core):
    """WordPress' requests; chosen such that the medians on both core types come out."""

    load: float = 0.98682
    """Load of a slow core."""
    request_s: float = 0.844e-3
    """Mean work of a request there."""


VARIED = (Queue(load=0.98), Queue(load=0.99), Queue(request_s=0.75e-3), Queue(request_s=0.95e-3))


@cache
def _latencies(where: str, inputs: Queue, *, enforce: bool) -> tuple[float, ...]:
    """Percentiles 50, 95 and 99 of the response time of one of WordPress' two servers, in s."""
    specs = {**CORE, "amp:core_type": where}
    served = Requests(inputs.load / inputs.request_s, inputs.request_s)
    workload = replace(steady(CLOCKS), requests=served)
    made = replace(
        scenario(inputs.machine, [guest("apache", workload, 1, specs, where)], 20.0),
        seed=inputs.seed,
        agent=LoopSettings(dry_run=not enforce),
    )
    vm = run(made, "none").vms["apache"]
    assert isinstance(vm, VmResultWithRequests)
    return tuple(p or 0.0 for p in (vm.latency_p50_s, vm.latency_p95_s, vm.latency_p99_s))


def _figure_3(inputs: Queue) -> Iterator[Row]:
    chosen = fitted("load and work of requests")
    for where, median_us in (("slow", 44385.0), ("fast", 691.0)):
        ours = 1e6 * _latencies(where, inputs, enforce=False)[0]
        what = f"no solution: median on a {where} core"
        yield Row(what, exactly(median_us, "us"), ours, "us", (QUEUE,), SATURATED, chosen)


def _figure_3_solutions(inputs: Queue) -> Iterator[Row]:
    theirs = _latencies("slow", inputs, enforce=False)
    latencies = _latencies("fast", inputs, enforce=True)
    for percentile, ours, baseline in zip((50, 95, 99), latencies, theirs, strict=True):
        what = f"solution 1: percentile {percentile} on a fast core over the baseline"
        yield Row(what, SAME, ours / baseline, "", (QUEUE, NO_JITTER), kind=SAME_SPEED)


SAME = Published("equal to the baseline", 0.99, 1.01, neutral=1.0)
PAPER = Paper(
    "teabe2017",
    "Dealing with performance unpredictability in an asymmetric multicore processor cloud",
    (
        Figure(
            "figure 2",
            "4.1",
            "Execution times of SPEC CPU2006 and Blast",
            _figure_2,
            (Core(coefficient=WRONG_COEFFICIENT),),
            Core(),
        ),
        Figure(
            "figure 3",
            "4.1",
            "WordPress, no solution",
            _figure_3,
            (Queue(load=0.5),),
            Queue(),
            VARIED,
            random=True,
        ),
        Figure(
            "figure 3, solutions",
            "4.1",
            "WordPress",
            _figure_3_solutions,
            (Queue(coefficient=WRONG_COEFFICIENT),),
            Queue(),
        ),
    ),
    (
        "figure 3, solution 2: figure 2 shows that its rule does not hold a booking here",
        "figure 1 (processors of two public clouds): measurements of their machines",
        "overhead (section 4.2): the agent's own cost is measured on real hosts, see the guide",
        "box plots of figure 2 by program: an image",
    ),
)
