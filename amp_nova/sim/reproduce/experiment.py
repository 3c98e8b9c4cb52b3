"""Hosts, guests and runs of the papers' experiments."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from amp_nova.flavor.extra_specs import parse
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.plugins import load_policy
from amp_nova.sim import run as intervals
from amp_nova.sim.report import Result
from amp_nova.sim.scenarios.scenario import Guest, Scenario
from amp_nova.sim.scenarios.workload import Phase, Workload
from amp_nova.sim.slots import run as slots


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
