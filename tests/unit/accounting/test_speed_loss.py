# SPDX-License-Identifier: Apache-2.0
"""Busy siblings: how long another hardware thread of a vCPU's core was in use."""

import pytest
from msgspec import structs

from amp_nova.accounting.speed_loss import siblings_busy
from amp_nova.model.observation import Domain, DomainReading, Observation
from amp_nova.model.topology import CoreType, PCpu, Topology
from tests.support.hosts import reading

SMT = Topology(
    (CoreType("p", 1.0, smt_busy_factor=0.6),),
    tuple(PCpu(i, "p", (i // 2 * 2, i // 2 * 2 + 1)) for i in range(4)),
    "p",
    "test",
)
ANYWHERE = frozenset(range(4))


def busy(vcpus, ran, before=None, topology=SMT):
    """By vCPU, after a second in which each pCPU ran for ``ran`` seconds, ``None`` if offline."""
    domain = Domain("vm", "vm", len(vcpus))
    idle_ns = {p: round(5e9 - s * 1e9) for p, s in enumerate(ran) if s is not None}
    seen = Observation(0, topology, (DomainReading(domain, tuple(vcpus)),), idle_ns=idle_ns)
    found = siblings_busy(seen, dict.fromkeys(ANYWHERE if before is None else before, 4e9), 10**9)
    return {key[1]: pytest.approx(ratio) for key, ratio in found.items()}


def test_whatever_runs_on_a_sibling_counts():
    """0 and 1 are threads of one core, 2 and 3 of the other."""
    vcpus = [reading(i, pcpus=(i,)) for i in range(3)]

    assert busy(vcpus, (0.5, 0.2, 1.0, 0.0)) == {0: 0.2, 1: 0.5, 2: 0.0}


def test_a_vcpu_that_may_choose_counts_where_it_was_seen_or_everywhere():
    """Everywhere is the mean."""
    vcpus = [
        structs.replace(reading(0, pcpus=ANYWHERE), last_pcpu=2),
        reading(1, pcpus=ANYWHERE),
        structs.replace(reading(2, pcpus=(0, 1)), last_pcpu=3),
    ]

    assert busy(vcpus, (0.5, 0.3, 1.0, 0.2)) == {0: 0.2, 1: 0.5, 2: 0.4}


@pytest.mark.parametrize(
    ("ran", "before"), [((0.1, None, 0.0, 0.0), None), ((0.1, 0.1, 0.0, 0.0), {0, 2, 3})]
)
def test_what_is_not_known_counts_as_busy(ran, before):
    """So a vCPU is not throttled to what it would need on a faster pCPU."""
    assert busy([reading(0, pcpus=(0,))], ran, before) == {0: 1.0}


def test_counters_that_jump_give_a_share_of_the_time():
    """Idle time is counted in ticks, and goes back on some machines."""
    vcpus = [reading(0, pcpus=(0,)), reading(1, pcpus=(2,))]

    assert busy(vcpus, (0.0, 1.01, 0.0, -0.02)) == {0: 1.0, 1: 0.0}


def test_nothing_is_asked_where_siblings_cost_nothing():
    """As on most hosts."""
    free = Topology((CoreType("p", 1.0),), SMT.pcpus, "p", "test")

    assert busy([reading(0, pcpus=(0,))], (1.0, 1.0, 1.0, 1.0), topology=free) == {}
