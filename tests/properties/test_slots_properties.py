# SPDX-License-Identifier: Apache-2.0
"""Invariants of every slot, for any guests."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_nova.cmd.command import as_json
from amp_nova.plugins import load_policy
from amp_nova_lab import report
from amp_nova_lab.host import SimHost
from amp_nova_lab.slots import run
from amp_nova_lab.slots.board import Board
from tests.properties.examples import examples
from tests.unit.lab.builders import guest, scenario

POLICIES = ("credit", "aash", "integrated")
SLOTS = 40


@st.composite
def scenarios(draw, utilization=True):
    """Up to five instances, none with more vCPUs than there are cores, on two core types."""
    fast, slow = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    guests = [
        guest(
            f"vm{i}",
            draw(st.integers(1, fast + slow)),
            utilization=draw(st.sampled_from([0.4, 1.0])) if utilization else 1.0,
            barrier=draw(st.sampled_from([None, 0.004, 0.03])),
            work=draw(st.sampled_from([None, 0.1])),
            weight=str(draw(st.sampled_from([0.5, 1, 3]))),
        )
        for i in range(draw(st.integers(1, 5)))
    ]
    return scenario(*guests, duration_s=SLOTS * run.SLOT_S, fast=fast, slow=slow)


def watch(made, policy, check):
    """Run slot by slot; ``check`` gets the board as each slot begins."""
    board = Board(made.topology)
    scheduler = run.scheduler(load_policy(policy), made, board)
    cores = run.SlotCores(board, scheduler)
    host = SimHost(made.topology, made.guests, made.seed, scheduler=cores)
    for slot in range(SLOTS):
        # The host reschedules, which decides the slot, before any time passes.
        host.advance(slot * run.SLOT_S)
        check(board)
        host.advance((slot + 1) * run.SLOT_S)
        cores.next_slot()


def name(vcpu):
    return vcpu.guest.guest.name


@settings(max_examples=examples(25), deadline=None)
@given(scenarios(), st.sampled_from(POLICIES))
def test_every_vcpu_is_in_one_place_and_no_core_idles_while_one_waits(made, policy):
    """Except that integrated keeps siblings apart and lets parallel instances wait."""

    def check(board):
        places = [v for v in board.running.values() if v]
        places += [v for queue in board.queue.values() for v in queue]
        assert Counter(places) == Counter(dict.fromkeys(board, 1))
        if policy != "integrated" and any(board.queue.values()):
            assert all(board.running.values())

    watch(made, policy, check)


@settings(max_examples=examples(25), deadline=None)
@given(scenarios())
def test_two_vcpus_of_an_instance_are_never_on_one_core(made):
    """Running, waiting or asleep (principle 1)."""

    def check(board):
        homes = Counter((name(v), v.pcpu) for v in board)
        assert max(homes.values(), default=0) <= 1

    watch(made, "integrated", check)


@settings(max_examples=examples(25), deadline=None)
@given(scenarios(utilization=False))
def test_a_parallel_instance_runs_on_all_its_cores_or_on_none(made):
    """Principle 2. A core idles only if all that wait are parallel or have a sibling there."""
    parallel = {g.name for g in made.guests if g.workload.barrier_ref_s is not None}

    def check(board):
        running = Counter(name(v) for v in board if board.runs(v))
        awake = Counter(name(v) for v in board)
        assert all(running[vm] in (0, awake[vm]) for vm in parallel)
        for pcpu in (p for p, v in board.running.items() if v is None):
            for vcpu in (v for queue in board.queue.values() for v in queue):
                siblings = [v.pcpu for v in vcpu.guest.vcpus]
                assert name(vcpu) in parallel or pcpu in siblings

    watch(made, "integrated", check)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(6), deadline=None)
@given(made=scenarios())
def test_work_is_bounded_by_the_cores_and_the_same_seed_gives_the_same_bytes(policy, made):
    """By their time and speed; nothing depends on the order of sets or on time."""
    result, again = (run.run(made, load_policy(policy)) for _ in range(2))

    assert as_json(report.rounded(result)) == as_json(report.rounded(again))
    assert 0.0 <= result.fast_idle_ratio <= 1.0
    cores = sum(2.0 if p.core_type == "fast" else 1.0 for p in made.topology.pcpus)
    endless = [
        result.vms[g.name].progress_refcores * len(g.booking.vcpus)
        for g in made.guests
        if g.workload.work_ref_s is None
    ]
    assert sum(endless) <= cores * (1.0 + 1e-9)
