# SPDX-License-Identifier: Apache-2.0
"""Hosts, guests and runs of the papers' experiments."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from amp_nova.agent.loop import LoopSettings
from amp_nova.agent.state.policy_runner import PolicySettings
from amp_nova.control.context import Terms
from amp_nova.flavor.extra_specs import parse
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova_lab import run as intervals
from amp_nova_lab.report import Result
from amp_nova_lab.scenarios.scenario import Guest, Scenario
from amp_nova_lab.scenarios.workload import Phase, Workload
from amp_nova_lab.slots import run as slots

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
        agent=LoopSettings(Terms(cycle_s=INTERVAL_S)),
    )


RANDOM = "random"
"""Places vCPUs by chance in every interval; the papers' credit does so in slots."""


def run(made: Scenario, policy: str, **params: object) -> Result:
    """The result of a policy that decides in intervals, as on a real host."""
    return intervals.run(
        made, intervals.read_policy("credit" if policy == RANDOM else policy, **params)
    )


def run_slots(made: Scenario, policy: str, **params: object) -> Result:
    """The result of a hypervisor's scheduler that decides every 10 ms."""
    return slots.run(made, intervals.read_policy(policy, **params))


def speeds(result: Result) -> dict[str, float]:
    """Speed of every guest, over the slowest core type."""
    return {name: vm.progress_refcores for name, vm in result.vms.items()}


def percent(ratio: float) -> float:
    """A ratio as a change in percent."""
    return (ratio - 1.0) * 100.0


REPRODUCED, SIGN_ONLY, NOT_REPRODUCED = "reproduced", "sign only", "not reproduced"
OUTCOMES = (REPRODUCED, SIGN_ONLY, NOT_REPRODUCED)
IDENTITY, FITTED = "identity", "fitted"
SEEDS = range(5)
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
        return (self.low >= self.neutral) - (self.high <= self.neutral)


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
class Kind:
    """Why a row is no result even if it agrees with the paper: its verdict, and the reason."""

    verdict: str
    reason: str


identity = partial(Kind, IDENTITY)
"""The row follows from the model or its own inputs."""
CANNOT_FAIL = identity("it agrees with every wrong policy or input too")
fitted = partial(Kind, FITTED)
"""An input was chosen such that this row comes out."""


@dataclass(frozen=True, slots=True)
class Row:
    """A quantity of a figure, published and ours.

    ``assumptions``: what the paper leaves open and we chose; ``cause``: why it is not reproduced,
    as far as known; ``least`` and ``greatest``: our value over all seeds and varied inputs;
    ``if_wrong``: its worst outcome with a wrong policy or input.
    """

    quantity: str
    published: Published
    ours: float
    unit: str = ""
    assumptions: tuple[str, ...] = ()
    cause: str = ""
    kind: Kind | None = None
    least: float | None = None
    greatest: float | None = None
    if_wrong: str = NOT_REPRODUCED

    @property
    def difference(self) -> float:
        """Ours less the nearest value that the paper allows; 0 within its range."""
        return self.ours - min(max(self.ours, self.published.low), self.published.high)

    @property
    def _tolerance(self) -> float:
        """Part of the published effect by which ours may be off."""
        return TOLERATED * abs(self.ours - self.difference - self.published.neutral)

    @property
    def agrees(self) -> bool:
        """Whether our value is within what the paper allows, or hardly off."""
        single = self.published.low == self.published.high
        least = (0.5 if self.unit == "%" else 0.005) if single else 0.0
        return abs(self.difference) <= max(self._tolerance, least)

    @property
    def always_agrees(self) -> bool:
        """Whether the whole interval agrees."""
        ends = (self.ours if end is None else end for end in (self.least, self.greatest))
        return all(replace(self, ours=end).agrees for end in ends)

    @property
    def verdict(self) -> str:
        """One of the five verdicts.

        An identity that does not hold is a difference, and so is a row that misses what was fitted.
        """
        kind = self._kind
        return kind.verdict if kind is not None and self.agrees else self.outcome

    @property
    def outcome(self) -> str:
        """How it compares with the paper, whatever kind of row it is."""
        if self.agrees:
            return REPRODUCED
        published = self.published
        towards = published.side * (self.ours - published.neutral) > self._tolerance
        return SIGN_ONLY if towards else NOT_REPRODUCED

    @property
    def _kind(self) -> Kind | None:
        return self.kind or (CANNOT_FAIL if self.if_wrong == REPRODUCED else None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, what kind of row it is, and the cause of a difference."""
        notes = [f"Assumed: {text}" for text in self.assumptions]
        kind = self._kind
        if kind is not None and self.verdict == kind.verdict:
            notes.append(f"{kind.verdict.capitalize()}: {kind.reason}")
        if not self.agrees:
            notes.append(f"Cause: {self.cause}")
        return tuple(notes)


@dataclass(frozen=True)
class Inputs:
    """What an experiment needs and its paper does not print."""

    seed: int = 0
    replaced: str = ""
    """A policy in whose place ``wrong`` runs."""
    wrong: str = ""

    def runs(self, policy: str) -> str:
        """The policy that runs when an experiment asks for this one."""
        return self.wrong if policy == self.replaced else policy


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure or table of a paper, and how to compute our values for it.

    ``section`` is where the paper states the values; ``wrong``: inputs with which a row has to
    fail, or it is an identity; ``varied``: other plausible ``inputs``; ``random``: whether the runs
    depend on the seed.
    """

    name: str
    section: str
    title: str
    rows: Callable[[Any], Iterator[Row]]
    wrong: Sequence[Inputs]
    inputs: Inputs = Inputs()
    varied: Sequence[Inputs] = ()
    random: bool = False

    @property
    def where(self) -> str:
        """Where to look it up in the paper."""
        return f"{self.name}, section {self.section}"

    def once(self) -> list[Row]:
        """Its rows with the first seed and without varying anything."""
        return self._tried(list(self.rows(self.inputs)))

    def results(self) -> list[Row]:
        """Its rows: means over seeds, and the interval of all runs."""
        seeds = SEEDS if self.random else SEEDS[:1]
        runs = [replace(self.inputs, seed=seed) for seed in seeds]
        results = []
        for rows in zip(*(self.rows(run) for run in (*runs, *self.varied)), strict=True):
            ours = [row.ours for row in rows]
            mean = statistics.mean(ours[: len(runs)])
            results.append(replace(rows[0], ours=mean, least=min(ours), greatest=max(ours)))
        return self._tried(results)

    def _tried(self, rows: list[Row]) -> list[Row]:
        """The rows with their worst outcome under wrong inputs."""
        wrong = zip(*(self.rows(inputs) for inputs in self.wrong), strict=True)
        return [
            replace(row, if_wrong=max((r.outcome for r in tried), key=OUTCOMES.index))
            for row, tried in zip(rows, wrong, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Paper:
    """The figures of a paper.

    ``left_out``: what the paper shows and no row covers, each with the reason.
    """

    name: str
    title: str
    figures: tuple[Figure, ...]
    left_out: tuple[str, ...] = ()
