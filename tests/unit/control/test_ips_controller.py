# SPDX-License-Identifier: Apache-2.0
"""Controllers of instructions per second, one at a time, on a vCPU that does as it is told."""

import pytest
from msgspec import structs

from amp_nova.control.ips_controller import (
    OVERDRAFT_S,
    TICKS,
    IpsState,
    IpsTerms,
    Work,
    first_share,
    limit,
    moved,
)
from amp_nova_lab.printed_controller import CONTROLLERS

SP_S = 0.1
TICK_S = SP_S / TICKS
R = 2e9
FIELDS = ("wall_s", "run_s", "wait_s", "instructions")


def looks(state, terms, seconds, rate=R, wants=1.0, name="default", most=1.0, gift_s=0.0):
    """Let time pass, look by look: the state after it, and the instructions of each look.

    ``wants``: share of every look in which it wants a pCPU; ``most``: what others leave of one;
    ``gift_s``: CPU time that a limit gives away when it is written.
    """
    controller, done, since = CONTROLLERS[name], [], Work()
    for _ in range(round(seconds / TICK_S)):
        run_s = min(state.share, most) * wants * TICK_S
        if state.in_force_s == 0.0 and not since.wall_s:
            run_s = min(TICK_S, run_s + gift_s)
        latest = Work(TICK_S, run_s, wants * TICK_S - run_s, run_s * rate)
        done.append(latest.instructions)
        since = Work(*(getattr(since, f) + getattr(latest, f) for f in FIELDS))
        changed = controller.changed(state, terms, since.run_s, since.instructions)
        if changed or since.wall_s >= SP_S * 0.999:
            state, since = controller.act(state, terms, since, latest, changed), Work()
    return state, done


def begun(booked=0.5, **more):
    """A vCPU that has run for a second, in balance."""
    terms = IpsTerms(booked * R, **more)
    state, _ = looks(IpsState(first_share(terms.ips, None)), terms, 1.0)
    return state, terms


class TestPrinted:
    """The published rule, as algorithms.md works it out."""

    @pytest.mark.parametrize(
        ("booked", "printed", "decay"),
        [
            (0.02, 1567, 733),
            (0.10, 233, 150),
            (0.30, 66.7, 33.3),
            (0.50, 0, 0),
            (0.60, 11.1, -16.7),
            (0.80, -6.2, -16.7),
            (0.95, -12.3, -15.8),
        ],
    )
    def test_it_delivers_what_the_table_says(self, booked, printed, decay):
        """Error in percent of the booking, for a vCPU that always wants to run."""
        terms = IpsTerms(booked * R)
        for name, expected in (("printed", printed), ("printed-decay", decay)):
            _, done = looks(IpsState(1.0), terms, 600.0, name=name)
            error = sum(done) / (600.0 * terms.ips) - 1.0
            assert error * 100.0 == pytest.approx(expected, abs=0.5)


class TestDefault:
    """What the default does, and what it never does."""

    @pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 2.0])
    def test_a_phase_change_costs_little_of_a_second(self, factor):
        """No more than one look of the booking, and that is paid back within 0.3 s."""
        state, terms = begun(0.4)
        _, done = looks(state, terms, 1.0, rate=R * factor)
        _, soon = looks(state, terms, 0.3, rate=R * factor)

        assert sum(done) == pytest.approx(terms.ips, rel=0.002)
        assert max(abs(sum(soon[:n]) / terms.ips - n * TICK_S) for n in range(24)) <= 0.0126
        assert sum(soon) == pytest.approx(0.3 * terms.ips, rel=0.02)

    def test_what_others_took_is_made_up_for_a_little_at_most(self):
        """A minute with a third of the booking does not lead to more than 3 % too much."""
        state, terms = begun(0.6)
        state, _ = looks(state, terms, 60.0, most=0.2)

        _, done = looks(state, terms, 1.0)

        assert sum(done) <= 1.03 * terms.ips

    @pytest.mark.parametrize("burst_s", [0.5, 3.0, 10.0])
    def test_a_burst_spends_what_was_banked_and_no_more(self, burst_s):
        """As much above the booking as was banked, and as fast as the core allows."""
        state, terms = begun(0.25, burst_s=burst_s)
        state, _ = looks(state, terms, 60.0, wants=0.0)

        _, done = looks(state, terms, 20.0)

        assert sum(done) == pytest.approx((20.0 + burst_s) * terms.ips, rel=0.01)
        at_once_s = burst_s / 4
        assert sum(done[: round(at_once_s / TICK_S)]) >= 0.9 * R * at_once_s

    def test_idle_time_fills_the_bank_no_faster_than_it_passes(self):
        """A second not wanted banks a second of the booking."""
        state, terms = begun(0.25, burst_s=10.0)
        state, _ = looks(state, terms, 1.0, wants=0.0)

        _, done = looks(state, terms, 5.0)

        assert sum(done) == pytest.approx(6.0 * terms.ips, rel=0.01)

    def test_who_had_too_much_keeps_running(self):
        """Even the greatest overdraft leaves a fifth of the booking."""
        state, terms = begun()
        state = structs.replace(state, balance=-OVERDRAFT_S * terms.ips)

        _, done = looks(state, terms, 1.0)

        assert 0.19 * terms.ips <= sum(done) <= 0.4 * terms.ips

    def test_writes_that_give_time_away_become_rare_and_are_paid_for(self):
        """On a kernel that gives 8 ms with every write, 40 s of changing work get their booking."""
        state, terms = begun(0.3)
        total, writes = 0.0, 0
        for second in range(40):
            for _ in range(10):
                before = state.share
                rate = R * (1.0 + 0.3 * (second % 2))
                state, done = looks(state, terms, SP_S, rate=rate, gift_s=0.008)
                total += sum(done)
                writes += state.share != before

        assert total == pytest.approx(40.0 * terms.ips, rel=0.01)
        assert writes <= 40 * 6

    def test_a_move_expects_what_core_types_differ_nominally(self):
        """So nothing is to be learned when the work gains as much."""
        state, terms = begun(0.4)

        state = moved(structs.replace(state, share=state.share / 2), terms, None, R, 2 * R)
        _, done = looks(state, terms, 1.0, rate=2 * R)

        assert sum(done) == pytest.approx(terms.ips, rel=0.001)


class TestLimit:
    """Shares as the kernel takes them."""

    @pytest.mark.parametrize("share", [0.001, 0.004, 0.02, 0.049, 0.05, 0.3, 0.999])
    def test_it_is_the_share(self, share):
        """Within a thousandth, in periods from 20 ms, with no quota under 1 ms."""
        made = limit(share)

        assert made.cores == pytest.approx(share, rel=0.001)
        assert made.quota_us >= 1_000
        assert 20_000 <= made.period_us <= 1_000_000

    def test_nothing_is_as_little_as_can_be_and_all_is_all(self):
        """A thousandth of a pCPU, and a whole one."""
        assert limit(0.0).cores == 0.001
        assert limit(1.0).cores == limit(1.7).cores == 1.0
