"""One published figure beside ours, and the hosts and guests that experiments are made of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from amp_nova.flavor.extra_specs import parse
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.sim.scenarios.scenario import Guest, Scenario
from amp_nova.sim.scenarios.workload import Phase, Workload


@dataclass(frozen=True, slots=True)
class Figure:
    """A quantity. ``published``: as the paper has it, or what follows from its text."""

    paper: str
    figure: str
    quantity: str
    published: str
    ours: float
    unit: str = ""


def host(fast: int, slow: int, coefficient: float, reference_ips: float | None = None) -> Topology:
    """Fast cores, then slow ones, which are the reference."""
    names = ["fast"] * fast + ["slow"] * slow
    types = (
        CoreType("slow", 1.0, "paper", nominal_ips=reference_ips),
        CoreType(
            "fast",
            coefficient,
            "paper",
            nominal_ips=None if reference_ips is None else reference_ips * coefficient,
        ),
    )
    pcpus = tuple(PCpu(i, name, (i,), llc=0) for i, name in enumerate(names))
    return Topology(types, pcpus, "slow", "paper")


def guest(
    name: str,
    speedup: float,
    vcpus: int = 1,
    specs: Mapping[str, str] | None = None,
    *,
    work_ref_s: float | None = None,
    barrier_ref_s: float | None = None,
    start_on: str | None = None,
) -> Guest:
    """A guest whose work gains so much from a fast core and never sleeps."""
    workload = Workload((Phase((1.0, speedup)),), work_ref_s, barrier_ref_s)
    return Guest(name, parse(specs or {}, vcpus), workload, specs or {}, start_on)


def scenario(
    topology: Topology,
    guests: Iterable[Guest],
    duration_s: float,
    seed: int = 0,
    reference_ips: float | None = None,
) -> Scenario:
    """An experiment."""
    return Scenario(
        "reproduce", duration_s, topology, tuple(guests), seed=seed, reference_ips=reference_ips
    )
