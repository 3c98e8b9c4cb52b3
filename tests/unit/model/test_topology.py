"""Core types and pCPUs as nouns."""

import pytest

from amp_nova.exceptions import TopologyUnknown
from amp_nova.model.topology import CoreType, PCpu, Topology


def machine() -> Topology:
    """Two fast cores with two threads each and two slow ones."""
    fast = [PCpu(i, "fast", (i - i % 2, i - i % 2 + 1)) for i in range(4)]
    slow = [PCpu(i, "slow", (i,)) for i in (4, 5)]
    types = (CoreType("slow", 1.0), CoreType("fast", 2.0, threads_per_core=2))
    return Topology(types, (*fast, *slow), "slow", "a test")


def test_a_core_type_that_is_not_there_is_named_with_those_that_are():
    """Asking for an unknown type says which ones the host has."""
    with pytest.raises(
        TopologyUnknown, match="no core type 'tiny' on this host; it has slow, fast"
    ):
        machine().core_type("tiny")


def test_only_type_needs_all_to_be_of_one():
    """pCPUs of one type have that type; mixed, offline or none have not."""
    assert machine().only_type({0, 3}).name == "fast"
    assert machine().only_type({0, 4}) is None
    assert machine().only_type(set()) is None
    assert machine().only_type({99}) is None


def test_a_type_whose_cores_all_sleep_keeps_its_coefficient():
    """Switching all slow cores off does not make the fast ones the reference."""
    awake = machine().with_online(frozenset({0, 1}))

    assert awake.core_type("fast").coefficient == 2.0
    assert awake.core_type("slow").coefficient == 1.0
    assert awake.pcpus_of("slow") == frozenset()
    assert awake.offline == (2, 3, 4, 5)


def test_a_sibling_that_sleeps_is_no_sibling_until_it_wakes():
    """Online siblings follow what is online, there and back."""
    half = machine().with_online(frozenset({0, 4, 5}))
    whole = half.with_online(frozenset(range(6)))

    assert half.pcpus[0].siblings == (0,)
    assert whole.pcpus[0].siblings == (0, 1)
    assert whole.offline == ()


def test_a_pcpu_never_seen_before_asks_for_a_new_look():
    """A CPU that was plugged in is not guessed to be of any type."""
    assert machine().with_online(frozenset({0, 7})) is None
    assert machine().with_online(frozenset()) is None
