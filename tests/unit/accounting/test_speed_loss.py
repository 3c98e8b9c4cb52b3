"""Busy siblings: how likely another hardware thread of a vCPU's core was in use."""

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


def busy(vcpus, ran):
    domain = Domain("vm", "vm", len(vcpus))
    seen = Observation(0, SMT, (DomainReading(domain, tuple(vcpus)),))
    found = siblings_busy(seen, {("vm", i): share for i, share in enumerate(ran)})
    return {key[1]: pytest.approx(ratio) for key, ratio in found.items()}


def test_who_shares_a_core_is_told_by_affinity():
    """0 and 1 are threads of one core, 2 has a core to itself."""
    vcpus = [reading(i, pcpus=(i,)) for i in range(3)]

    assert busy(vcpus, (0.5, 0.2, 1.0)) == {0: 0.2, 1: 0.5, 2: 0.0}


def test_or_by_where_it_was_seen_last():
    """Where it may choose; one that was seen nowhere is not judged and disturbs nobody."""
    anywhere = frozenset(range(4))
    vcpus = [
        structs.replace(reading(0, pcpus=anywhere), last_pcpu=2),
        structs.replace(reading(1, pcpus=anywhere), last_pcpu=3),
        reading(2, pcpus=anywhere),
        structs.replace(reading(3, pcpus=(0, 1)), last_pcpu=3),
    ]

    assert busy(vcpus, (0.5, 0.25, 1.0, 1.0)) == {0: 0.25, 1: 0.5}


def test_several_vcpus_on_the_sibling_add_up():
    """To no more than all the time."""
    vcpus = [reading(i, pcpus=(p,)) for i, p in enumerate((0, 1, 1))]

    assert busy(vcpus, (1.0, 0.3, 0.4))[0] == 0.7
    assert busy(vcpus, (1.0, 0.8, 0.8))[0] == 1.0
