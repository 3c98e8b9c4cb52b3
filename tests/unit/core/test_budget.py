"""A vCPU is given its instructions in portions, over a kernel's bandwidth control as a model."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_nova.core import budget as budgets
from amp_nova.core.budget import Phase
from amp_nova.core.capacity import Bandwidth
from amp_nova.core.charge import Look
from tests.kernel import MS, SECOND, Kernel

R = 2.5
"""Instructions per nanosecond, on average."""
MARK_NS = 100 * MS


def wavering(seed=1, spread=0.25):
    """A pace that is another one every few milliseconds, up to 1.7 times another."""
    chance = random.Random(seed)
    paces = [R * chance.uniform(1 - spread, 1 + spread) for _ in range(5000)]
    return lambda now_ns: paces[now_ns // (3 * MS) % len(paces)]


def vcpu(share, pace, **more):
    """A vCPU with the limit that is right on average, and what it books in a second."""
    return Kernel(Bandwidth(round(share * 20_000), 20_000), pace=pace, **more), share * R * 1e9


def drive(kernel, ips, until_ns, known=None, late_ns=60_000):
    """Look when it is time to, write what is to be written; instructions at every mark."""
    known = known or budgets.begin(ips, kernel.limit, kernel.now_ns)
    marks = []
    for mark_ns in range(kernel.now_ns // MARK_NS * MARK_NS + 10 * MS, until_ns, MARK_NS):
        while known.phase is not Phase.OVER and known.due_ns + late_ns <= mark_ns:
            if known.write:
                kernel.write(known.portion)
            kernel.until(max(kernel.now_ns, known.due_ns + late_ns))
            kernel.charge()
            known = budgets.after(known, seen(kernel))
            kernel.looks += 1
        if known.write:
            kernel.write(known.portion)
            known = replace(known, write=False)
        kernel.until(max(kernel.now_ns, mark_ns))
        marks.append(kernel.instructions)
    return marks, known


def seen(kernel):
    return Look(kernel.now_ns, kernel.run_ns, kernel.periods, int(kernel.instructions))


def seconds(marks, ips):
    """What every second had over what it should have."""
    return [(b - a) / ips for a, b in zip(marks, marks[10:], strict=False)]


@given(
    st.floats(0.05, budgets.SHARE_MAX),
    st.integers(0, 99 * MS),
    st.integers(0, 3 * MS),
    st.integers(0, 150_000),
    st.integers(0, 10**6),
)
@settings(deadline=None, max_examples=30)
def test_every_second_has_what_is_booked(share, begin_ns, tick_ns, late_ns, seed):
    """Though the pace wavers, periods and ticks come at any time, and looks a little late."""
    kernel, ips = vcpu(share, wavering(seed), begin_ns=begin_ns, tick_ns=tick_ns)
    _, known = drive(kernel, ips, SECOND, late_ns=late_ns)

    marks, known = drive(kernel, ips, 4 * SECOND, known, late_ns)

    assert known.phase is not Phase.OVER
    assert max(abs(s - 1) for s in seconds(marks, ips)) <= 0.03
    assert (marks[-1] - marks[0]) / (len(marks) - 1) * 10 == pytest.approx(ips, rel=0.01)


def test_a_limit_alone_does_not_do_that():
    """The model shows what this is for."""
    kernel, ips = vcpu(0.05, wavering())
    marks = []
    for mark_ns in range(10 * MS, 4 * SECOND, MARK_NS):
        kernel.until(mark_ns)
        marks.append(kernel.instructions)

    assert max(abs(s - 1) for s in seconds(marks, ips)) > 0.04


@pytest.mark.parametrize("gain", [0.42, 2.375])
@pytest.mark.parametrize("share", [0.12, 0.2])
def test_a_move_to_another_core_type_costs_little(share, gain):
    """The pace is another one from one moment to the next, and stays so."""
    wavers = wavering(spread=0.05)
    kernel, ips = vcpu(
        share, lambda now_ns: wavers(now_ns) * (gain if now_ns > 1.53 * SECOND else 1.0)
    )
    marks, known = drive(kernel, ips, 4 * SECOND)

    assert known.phase is not Phase.OVER
    assert max(abs(s - 1) for s in seconds(marks[3:], ips)) <= 0.1
    assert max(abs(s - 1) for s in seconds(marks[20:], ips)) <= 0.03


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_one_that_falls_asleep_is_let_go(share):
    """Within a second, and until then it is looked at every few milliseconds at the most."""
    kernel, ips = vcpu(share, wavering())
    _, known = drive(kernel, ips, SECOND)
    kernel._wants, looks = lambda: False, kernel.looks

    _, known = drive(kernel, ips, 2 * SECOND, known)

    assert known.phase is Phase.OVER
    assert kernel.looks - looks < 100


def test_one_that_wants_less_is_let_go():
    """Half of what it books: its limit does not matter to it."""
    kernel, ips = vcpu(0.2, wavering(), naps=2 * MS)
    kernel._wants = lambda: kernel.now_ns % (20 * MS) < 2 * MS

    _, known = drive(kernel, ips, 2 * SECOND)

    assert known.phase is Phase.OVER


def test_what_others_took_is_not_made_up_for():
    """Two tenths of a period's budget at the most: a guest gets no flood when others leave."""
    kernel, ips = vcpu(0.05, wavering(spread=0.01))
    _, known = drive(kernel, ips, SECOND)
    wants, begin_ns = kernel._wants, kernel.now_ns
    kernel._wants = lambda: kernel.now_ns - begin_ns > 190 * MS and wants()

    marks, known = drive(kernel, ips, 3 * SECOND, known)

    assert known.phase is not Phase.OVER
    assert max(seconds(marks, ips)) <= 1.04
    assert max(abs(s - 1) for s in seconds(marks[5:], ips)) <= 0.03


def test_a_portion_without_instructions_does_no_harm():
    """A vCPU may run and retire nothing: an interrupt on its core may take that long."""
    kernel, ips = vcpu(0.05, lambda now_ns: R * (not SECOND < now_ns < SECOND + 60 * MS))

    marks, _ = drive(kernel, ips, 3 * SECOND)

    assert max(abs(s - 1) for s in seconds(marks[15:], ips)) <= 0.03


@pytest.mark.parametrize("counter", ["instructions", "run_ns"])
def test_counters_that_begin_anew_end_it(counter):
    """It is another life of the guest, of which nothing is known."""
    kernel, ips = vcpu(0.05, wavering())
    _, known = drive(kernel, ips, SECOND)

    known = budgets.after(known, replace(seen(kernel), **{counter: 0}))

    assert known.phase is Phase.OVER


def test_periods_that_never_begin_end_it():
    """Nothing tells when to look."""
    kernel, ips = vcpu(0.05, wavering())
    known = budgets.begin(ips, kernel.limit, 0)
    for now_ns in range(0, 200 * MS, MS):
        known = budgets.after(known, Look(now_ns, now_ns, 0, now_ns))

    assert known.phase is Phase.OVER


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5])
def test_a_vcpu_keeps_a_good_part_if_the_agent_dies(share):
    """What was written last holds then: a fifth of the booking at the least."""
    kernel, ips = vcpu(share, wavering(spread=0.05))
    known, portions = budgets.begin(ips, kernel.limit, 0), []
    while kernel.now_ns < 3 * SECOND:
        if known.write:
            kernel.write(known.portion)
            portions.append((kernel.now_ns, known.portion.cores))
        kernel.until(max(kernel.now_ns, known.due_ns))
        kernel.charge()
        known = budgets.after(known, seen(kernel))

    assert min(cores for at_ns, cores in portions if at_ns > SECOND) >= 0.19 * share
