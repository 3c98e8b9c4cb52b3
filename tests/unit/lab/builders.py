# SPDX-License-Identifier: Apache-2.0
"""Hosts and guests with defaults, for tests of the simulator."""

from amp_nova.flavor.extra_specs import parse
from amp_nova.model.allocation import Change, Changes, Step
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova_lab.scenarios.scenario import Guest, Scenario
from amp_nova_lab.scenarios.workload import Phase, Workload


def topology(fast=1, slow=1, coefficient=2.0, llc=None):
    """A host whose fast cores come first."""
    types = (CoreType("slow", 1.0), CoreType("fast", coefficient))
    names = ["fast"] * fast + ["slow"] * slow
    caches = llc or [0] * len(names)
    pcpus = tuple(PCpu(i, n, (i,), llc=caches[i]) for i, n in enumerate(names))
    return Topology(tuple(t for t in types if t.name in names), pcpus, "slow", "test")


def guest(
    name="vm",
    vcpus=1,
    speed=2.0,
    utilization=1.0,
    work=None,
    barrier=None,
    phases=None,
    start_on=None,
    **specs,
):
    """A guest; ``pref_core="0.5"`` books, ``pref_core__1`` for vCPU 1 alone."""
    named = {f"amp:{key.replace('__', '.')}": value for key, value in specs.items()}
    usual = (Phase((1.0, speed), utilization),)
    return Guest(
        name, parse(named, vcpus), Workload(phases or usual, work, barrier), named, start_on
    )


def place(host, pcpu, name="vm"):
    """Put the vCPU of a guest on a pCPU, as a policy would."""
    host.apply(Changes((Change((name, 0), (Step(pcpus=frozenset({pcpu})),)),)))


def scenario(*guests, duration_s=30.0, policy="none", seed=0, **host):
    """A scenario on such a host."""
    return Scenario("made", duration_s, topology(**host), guests, policy, seed)
