"""Hosts, guests and runs of the papers' experiments."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from amp_nova.agent.loop import Settings
from amp_nova.agent.state.policy_runner import PolicySettings
from amp_nova.control.context import Terms
from amp_nova.flavor.extra_specs import parse
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.plugins import load_policy
from amp_nova.sim import run as intervals
from amp_nova.sim.report import Result
from amp_nova.sim.scenarios.scenario import Guest, Scenario
from amp_nova.sim.scenarios.workload import Phase, Workload
from amp_nova.sim.slots import run as slots

INTERVAL_S = PolicySettings().interval_s
"""A cycle is as long as the interval of a policy, since nothing else happens in it here."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A host with fast cores first, then slow ones, which are the reference.

    ``caches``: number of last-level caches, to which the cores are assigned in turn.
    """

    fast: int
    slow: int
    coefficient: float
    caches: int = 1
    reference_ips: float | None = None

    @property
    def topology(self) -> Topology:
        """The host as the simulator takes it; without fast (slow) cores all are slow (fast)."""
        ips = self.reference_ips
        fast_ips = None if ips is None else ips * self.coefficient
        types = (
            CoreType("slow", 1.0, "paper", nominal_ips=ips),
            CoreType("fast", self.coefficient, "paper", nominal_ips=fast_ips),
        )
        names = ["fast"] * self.fast + ["slow"] * self.slow
        pcpus = tuple(PCpu(i, n, (i,), llc=i % self.caches) for i, n in enumerate(names))
        present = tuple(t for t in types if t.name in names)
        return Topology(present if "slow" in names else types, pcpus, "slow", "paper")


def steady(
    speedup: float, work_ref_s: float | None = None, barrier_ref_s: float | None = None
) -> Workload:
    """A workload that gains ``speedup`` from a fast core and never sleeps."""
    return Workload((Phase((1.0, speedup)),), work_ref_s, barrier_ref_s)


def guest(
    name: str,
    workload: Workload,
    vcpus: int = 1,
    specs: Mapping[str, str] | None = None,
    start_on: str | None = None,
) -> Guest:
    """A guest; best effort without ``specs``."""
    return Guest(name, parse(specs or {}, vcpus), workload, specs or {}, start_on)


def scenario(machine: Machine, guests: Iterable[Guest], duration_s: float) -> Scenario:
    """An experiment to run."""
    return Scenario(
        "reproduce",
        duration_s,
        machine.topology,
        tuple(guests),
        reference_ips=machine.reference_ips,
        agent=Settings(Terms(cycle_s=INTERVAL_S)),
    )


def run(made: Scenario, policy: str, **params: object) -> Result:
    """The result of a policy that decides in intervals, as on a real host."""
    return intervals.run(made, load_policy(policy, **params))


def run_slots(made: Scenario, policy: str, **params: object) -> Result:
    """The result of a hypervisor's scheduler that decides every 10 ms."""
    return slots.run(made, load_policy(policy, **params))


def speeds(result: Result) -> dict[str, float]:
    """Speed of every guest, over the slowest core type."""
    return {name: vm.progress_refcores for name, vm in result.vms.items()}


def percent(ratio: float) -> float:
    """A ratio as a change in percent."""
    return (ratio - 1.0) * 100.0


REPRODUCED, SIGN_ONLY, NOT_REPRODUCED = "reproduced", "sign only", "not reproduced"
FITTED = "fitted: "
TOLERATED = 0.1
"""Share of the published effect by which ours may be off."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a paper says of a quantity: its text, and the least and greatest value that it allows.

    ``neutral`` is the value without any effect.
    """

    text: str
    low: float
    high: float
    neutral: float = 0.0

    @property
    def side(self) -> int:
        """On which side of no effect all allowed values are: -1, 1, or 0 if on neither."""
        return (self.low > self.neutral) - (self.high < self.neutral)


def exactly(value: float, unit: str = "", neutral: float = 0.0) -> Published:
    """A printed number."""
    return Published(f"{value:g} {unit}".rstrip(), value, value, neutral)


def between(low: float, high: float, unit: str = "", neutral: float = 0.0) -> Published:
    """A printed range."""
    return Published(f"{low:g} to {high:g} {unit}".rstrip(), low, high, neutral)


def at_most(value: float, unit: str = "", neutral: float = 0.0, text: str = "") -> Published:
    """An upper bound; ``text`` if the paper gives it in words."""
    return Published(text or f"at most {value:g} {unit}".rstrip(), -math.inf, value, neutral)


def at_least(value: float, unit: str = "", neutral: float = 0.0, text: str = "") -> Published:
    """A lower bound; ``text`` if the paper gives it in words."""
    return Published(text or f"at least {value:g} {unit}".rstrip(), value, math.inf, neutral)


@dataclass(frozen=True, slots=True)
class Row:
    """A quantity of a figure, published and ours.

    ``assumptions``: what the paper leaves open and we chose; ``cause``: why it is not reproduced,
    as far as known; ``fitted``: the input that was chosen so that this row comes out.
    """

    quantity: str
    published: Published
    ours: float
    unit: str = ""
    assumptions: tuple[str, ...] = ()
    cause: str = ""
    fitted: str = ""

    @property
    def difference(self) -> float:
        """Ours less the nearest value that the paper allows; 0 within its range."""
        return self.ours - min(max(self.ours, self.published.low), self.published.high)

    @property
    def verdict(self) -> str:
        """One of the four kinds."""
        if self.fitted:
            return FITTED + self.fitted
        published = self.published
        nearest = self.ours - self.difference
        tolerance = TOLERATED * abs(nearest - published.neutral)
        least = 0.0
        if published.low == published.high:
            least = 0.5 if self.unit == "%" else 0.005
        if abs(self.difference) <= max(tolerance, least):
            return REPRODUCED
        if published.side * (self.ours - published.neutral) > tolerance:
            return SIGN_ONLY
        return NOT_REPRODUCED


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure or table of a paper, and how to compute our values for it.

    ``section`` is where the paper states the values.
    """

    name: str
    section: str
    title: str
    rows: Callable[[], Iterator[Row]]

    @property
    def where(self) -> str:
        """Where to look it up in the paper."""
        return f"{self.name}, section {self.section}"


@dataclass(frozen=True, slots=True)
class Paper:
    """The figures of a paper.

    ``left_out``: what the paper shows and no row covers, each with the reason.
    """

    name: str
    title: str
    figures: tuple[Figure, ...]
    left_out: tuple[str, ...] = ()
