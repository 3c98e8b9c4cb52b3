"""What the cloud gains on a host: who gets and who loses fast cores."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_nova.profiling import hints
from amp_nova.scheduling import placement_score
from amp_nova.scheduling.host_fit import room
from amp_nova.scheduling.placement_score import (
    Candidate,
    hinted,
    market,
    measured,
    outlook,
    sensitivity,
)
from amp_nova.wire.host_report import InstanceShare, Speedup, VcpuShare
from tests import hosts
from tests.snapshots import instance, snapshot

ONE_EACH = hosts.topology({"slow": (1, 1.0), "fast": (1, 2.0)})


def best_effort(resource, speedup=None, vcpus=1, allowed=frozenset({0, 1}), **said):
    """A best-effort instance, with its measured speedup if it has one."""
    found = Speedup(speedup) if speedup else None
    shares = (VcpuShare(i, allowed=allowed, speedup=found) for i in range(vcpus))
    return InstanceShare(resource, tuple(shares), **said)


def market_of(*instances, topology=ONE_EACH, policy="amp-vm"):
    """The market of a host with these instances."""
    seen = snapshot(*instances, topology=topology, policy=policy)
    return market(seen, {n.core_type: n.free_cores for n in room(seen).lanes})


@pytest.mark.parametrize(
    ("speedup", "by_rank", "evenly"),
    [(1.0, 1.5, 1.25), (1.5, 1.5, 1.375), (2.0, 1.5, 1.5)],
)
def test_the_papers_two_instances(speedup, by_rank, evenly):
    """kwon2011, figure 4: mean progress of speedups 2 and e on one fast and one slow core."""
    both = (best_effort("a", 2.0), best_effort("b", speedup))

    assert market_of(*both).worth / 2 == pytest.approx(by_rank)
    assert market_of(*both, policy="amp-fair").worth / 2 == pytest.approx(evenly)


@pytest.mark.parametrize(
    ("hint", "speedup"),
    [(None, None), (1.7, 1.7), (1e15, 100.0), ("low", 1.1), ("medium", 1.5), ("high", 1.9)],
)
def test_what_a_hint_says_of_the_speedup(hint, speedup):
    """A word means a part of what the hardware gives."""
    assert hints.hinted_speedup(hint, ONE_EACH) == (speedup and pytest.approx(speedup))


def test_a_hint_in_words_says_nothing_of_unknown_hardware():
    """Without coefficients only a number does."""
    bare = hosts.topology({"slow": (1, None), "fast": (1, None)})

    assert hints.hinted_speedup("high", bare) is None
    assert hints.hinted_speedup(1.7, bare) == 1.7


def test_whoever_gains_more_goes_where_fast_cores_are_free():
    """An empty hybrid host is worth twice a slow one to work that is bound by the CPU."""
    empty, slow = market_of(), market_of(topology=hosts.topology({"slow": (2, 1.0)}))
    bound, waiting = Candidate(1, sensitivity=1.0), Candidate(1, sensitivity=0.0)

    assert outlook(empty, bound).pace == 2.0
    assert outlook(slow, bound).pace == 1.0
    assert outlook(empty, bound).gain > outlook(slow, bound).gain + 0.8
    assert outlook(empty, waiting).gain == pytest.approx(outlook(slow, waiting).gain, abs=0.1)


def test_what_others_lose_counts():
    """The fast core has somebody who gains more: the newcomer adds what the slow core gives."""
    taken = market_of(best_effort("a", 2.0))

    assert outlook(taken, Candidate(1, sensitivity=0.9)).pace == 1.0
    assert outlook(taken, Candidate(1, sensitivity=0.9)).gain == pytest.approx(1.0, abs=0.11)


def test_a_booking_prefers_to_leave_fast_cores_alone():
    """One refcore on a slow core or half a fast one: the tenant gets the same, the cloud not."""
    busy = market_of(best_effort("a", 2.0), best_effort("b", 1.2))
    booking = Candidate(0, (1.0,))

    assert outlook(busy, booking, ("slow",)).gain > outlook(busy, booking, ("fast",)).gain
    empty = market_of()
    assert outlook(empty, booking, ("slow",)).gain > outlook(empty, booking, ("fast",)).gain


def test_a_parallel_instance_scales_with_the_fast_cores():
    """Two vCPUs: with 0, 1 and 2 fast cores it speeds up step by step (kwon2011, section 4.5)."""
    types = ({"slow": (2, 1.0)}, {"slow": (1, 1.0), "fast": (1, 2.0)}, {"fast": (2, 2.0)})
    paces = [
        outlook(market_of(topology=hosts.topology(t)), Candidate(2, sensitivity=1.0)).pace
        for t in types
    ]

    assert paces == pytest.approx([1.0, 1.5, 2.0])


def test_sensitivity_is_what_a_speedup_means_on_any_host():
    """Of a coefficient of 2, a speedup of 1.5 is half; hints name it or give a speedup."""
    assert sensitivity(Speedup(1.5), ONE_EACH) == pytest.approx(0.5)
    assert sensitivity(Speedup(0.9), ONE_EACH) == 0.0
    assert sensitivity(Speedup(9.0), ONE_EACH) == placement_score.SENSITIVITY_MAX
    assert sensitivity(Speedup(1.5), hosts.topology({"slow": (2, 1.0)})) is None
    assert hinted("high", ONE_EACH) == hints.HINTS["high"]
    assert hinted(1.5, ONE_EACH) == pytest.approx(0.5)
    assert hinted(None, ONE_EACH) is None
    assert measured(best_effort("a", 1.5, vcpus=2), ONE_EACH) == pytest.approx(0.5)
    assert measured(instance("a", (0.5, 0)), ONE_EACH) is None


def test_who_sleeps_takes_no_share():
    """An idle instance leaves its cores to the newcomer."""
    idle = best_effort("a", 2.0)
    asleep = replace(idle, vcpus=(replace(idle.vcpus[0], utilization_ratio=0.0),))

    assert outlook(market_of(asleep), Candidate(1, sensitivity=0.5)).pace == 1.5


@given(
    st.lists(st.tuples(st.sampled_from([None, 1.0, 1.2, 1.5, 2.0]), st.integers(1, 4)), max_size=6),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    st.sampled_from(["amp-vm", "amp-fair"]),
    st.sampled_from(
        [{"slow": (2, 1.0), "fast": (1, 2.0)}, {"a": (1, 1.0), "b": (2, 1.5), "c": (1, 3.0)}]
    ),
)
def test_by_instance_and_by_vcpu_are_the_same_shares(present, vcpus, own, policy, types):
    """What is dealt by instance, for speed, is what the policies' own functions deal by vCPU."""
    topology = hosts.topology(types)
    allowed = frozenset(p.id for p in topology.pcpus)
    there = [
        best_effort(f"i{n}", s and 1.0 + (s - 1.0) * 0.5, count, allowed)
        for n, (s, count) in enumerate(present)
    ]
    by_instance = market_of(*there, topology=topology, policy=policy)
    by_vcpu = replace(by_instance, groups=None)
    candidate = Candidate(vcpus, sensitivity=own)

    quick, exact = outlook(by_instance, candidate), outlook(by_vcpu, candidate)

    assert quick.gain == pytest.approx(exact.gain, abs=1e-9)
    assert quick.pace == pytest.approx(exact.pace, abs=1e-9)
