"""What the demonstration shows."""

import pytest

from amp_nova.sim.commands.show import ACTS, Show, Verdict


def whole_show(acts_s=2):
    show = Show(acts_s)
    places = []
    while show.second():
        if show.ends_act:
            places.append({key: row.core_type for key, row in show.kept.rows.items()})
    return show, places


def test_bookings_are_delivered_through_two_moves():
    """web-1 moves to a slow core and db/1 to a fast one."""
    show, places = whole_show()

    assert [p["web-1", 0] for p in places] == ["fast", "slow", "slow", "slow"]
    assert [p["db", 1] for p in places] == ["slow", "slow", "fast", "fast"]
    assert show.now_s == show.duration_s == 2 * len(ACTS)
    assert all(r == pytest.approx(1.0) for rs in show.kept.ratios.values() for r in rs)


def test_the_verdict_is_computed_from_the_run():
    """Without amp-nova the same flavor is twice as fast on a fast core."""
    verdict = whole_show()[0].verdict()

    assert verdict.delivered
    assert verdict.twins_ratio == pytest.approx(2.0)
    assert verdict.moves == 2
    assert "within 0.1 %" in str(verdict)
    assert "2.0 times as fast" in str(verdict)


def test_a_missed_booking_is_reported():
    """One second outside the tolerance is enough."""
    verdict = Verdict(0.042, 2.0, 0.5, 4.0, 2)

    assert not verdict.delivered
    assert "were NOT delivered" in str(verdict)
    assert "4.2 %" in str(verdict)


def test_the_claimed_error_is_rounded_up():
    """An error of 0.21 % is not claimed to be 0.2 %."""
    assert "within 0.3 %" in str(Verdict(0.0021, 2.0, 0.5, 4.0, 2))
