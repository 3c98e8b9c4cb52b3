"""A published figure beside the simulated one, and the hosts and guests of the experiments."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from amp_nova.flavor.extra_specs import parse
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.sim.scenarios.scenario import Guest, Scenario
from amp_nova.sim.scenarios.workload import Phase, Workload


@dataclass(frozen=True, slots=True)
class Figure:
    """A quantity. ``published`` is the paper's value, or what follows from its text."""

    paper: str
    figure: str
    quantity: str
    published: str
    ours: float
    unit: str = ""


def host(fast: int, slow: int, coefficient: float, reference_ips: float | None = None) -> Topology:
    """A host with fast cores first, then slow ones, which are the reference."""
    names = ["fast"] * fast + ["slow"] * slow
    fast_ips = None if reference_ips is None else reference_ips * coefficient
    types = (
        CoreType("slow", 1.0, "paper", nominal_ips=reference_ips),
        CoreType("fast", coefficient, "paper", nominal_ips=fast_ips),
    )
    pcpus = tuple(PCpu(i, name, (i,), llc=0) for i, name in enumerate(names))
    return Topology(types, pcpus, "slow", "paper")


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


def scenario(
    topology: Topology,
    guests: Iterable[Guest],
    duration_s: float,
    seed: int = 0,
    reference_ips: float | None = None,
) -> Scenario:
    """An experiment to run."""
    return Scenario(
        "reproduce", duration_s, topology, tuple(guests), seed=seed, reference_ips=reference_ips
    )
