# SPDX-License-Identifier: Apache-2.0
"""Core types and pCPUs."""

import pytest

from amp_nova.exceptions import TopologyUnknown
from amp_nova.model.topology import CoreType, PCpu, Topology


def machine() -> Topology:
    """Two fast cores with two threads each and two slow ones."""
    fast = [PCpu(i, "fast", (i - i % 2, i - i % 2 + 1)) for i in range(4)]
    slow = [PCpu(i, "slow", (i,)) for i in (4, 5)]
    types = (CoreType("slow", 1.0), CoreType("fast", 2.0, threads_per_core=2))
    return Topology(types, (*fast, *slow), "slow", "a test")


def test_an_unknown_core_type_is_an_error():
    """The message lists the types that the host has."""
    with pytest.raises(
        TopologyUnknown, match="no core type 'tiny' on this host; it has slow, fast"
    ):
        machine().core_type("tiny")


def test_only_type_is_shared_by_all():
    """There is none for pCPUs of several types, for offline pCPUs, or for no pCPU."""
    assert machine().only_type({0, 3}).name == "fast"
    assert machine().only_type({0, 4}) is None
    assert machine().only_type(set()) is None
    assert machine().only_type({99}) is None


def test_an_offline_type_keeps_its_coefficient():
    """Taking all slow cores offline does not change the coefficient of the fast ones."""
    topology = machine().with_online(frozenset({0, 1}))

    assert topology.core_type("fast").coefficient == 2.0
    assert topology.core_type("slow").coefficient == 1.0
    assert topology.pcpus_of("slow") == frozenset()
    assert topology.offline == (2, 3, 4, 5)


def test_siblings_are_online():
    """They leave and return with CPU hotplug."""
    half = machine().with_online(frozenset({0, 4, 5}))
    whole = half.with_online(frozenset(range(6)))

    assert half.pcpus[0].siblings == (0,)
    assert whole.pcpus[0].siblings == (0, 1)
    assert whole.offline == ()


def test_an_unknown_pcpu_has_no_core_type():
    """After a CPU is added, the machine must be read again."""
    assert machine().with_online(frozenset({0, 7})) is None
    assert machine().with_online(frozenset()) is None
