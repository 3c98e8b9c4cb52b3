"""What holds for every booking of instructions per second, whatever the work does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ips_paths import GREATEST, guest, run
from tests.properties.examples import examples

LASTS_S = 12
bookings = st.sampled_from([0.02, 0.05, 0.1, 0.3, 0.5, 0.8, 0.95, 0.98])
core_types = st.sampled_from(["slow", "fast"])
# Levels of any size, each held long enough that a second sees one change or two.
phases = st.lists(st.tuples(st.floats(1.0, GREATEST), st.floats(0.6, 3.0)), min_size=1, max_size=8)
steps = st.lists(st.tuples(st.floats(0.94, 1.06), st.floats(0.05, 0.2)), min_size=20, max_size=60)


def walked(made):
    """Steps as a walk between the least level and the greatest."""
    level, path = 1.4, []
    for factor, for_s in made:
        level = min(GREATEST, max(1.0, level * factor))
        path.append((level, for_s))
    return path


@settings(max_examples=examples(25))
@given(st.tuples(bookings, core_types, phases | steps.map(walked)))
def test_a_booking_is_held(case):
    """Within 1 % over the run; in every second but the first within 3 %, and never far off."""
    booked, core_type, path = case
    made = guest("vm", core_type, booked, path)

    got = run([made], LASTS_S, each=1)["vm"]

    assert got.ratio == pytest.approx(1.0, abs=0.01)
    assert got.least >= 0.97
    assert got.most <= 1.03


@settings(max_examples=examples(15))
@given(bookings, core_types, phases, st.sampled_from([0.05, 0.3, 0.5, 0.7]))
def test_who_rests_gets_its_booking_when_it_wants_it(booked, core_type, path, utilization):
    """Never more than the booking of the whole time, nor much less than of the time it wants."""
    made = guest("vm", core_type, booked, path, utilization)

    got = run([made], LASTS_S, each=1)["vm"]

    assert got.ratio == pytest.approx(1.0, abs=0.01)
    assert got.most <= 1.03


@settings(max_examples=examples(15))
@given(st.floats(1.02, 5.0), phases)
def test_more_than_a_core_gives_winds_nothing_up(booked, path):
    """Half a run in which it is too much does not lead to more than the booking in the other."""
    slow = [(level / booked / GREATEST, for_s) for level, for_s in path]
    made = guest("vm", "slow", 0.9, [*slow, (1.0, 100.0)])
    lasts_s = int(sum(for_s for _, for_s in slow)) + 4

    got = run([made], lasts_s, each=1)["vm"]

    assert got.most <= 1.03


@settings(max_examples=examples(10))
@given(st.permutations(range(4)), st.integers(0, 3))
def test_the_order_of_guests_does_not_matter(order, seed):
    """Each gets the same, to the last instruction that floating point can tell."""
    guests = [
        guest(f"vm{i}", ("slow", "fast")[i % 2], 0.2 + 0.2 * i, [(1.0, 0.7 + seed), (1.5, 1.3)])
        for i in range(4)
    ]

    found = run(guests, 4, each=2)
    again = run([guests[i] for i in order], 4, each=2)

    assert {n: r.ratio for n, r in found.items()} == pytest.approx(
        {n: r.ratio for n, r in again.items()}, abs=1e-6
    )
