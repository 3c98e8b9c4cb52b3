# SPDX-License-Identifier: Apache-2.0
"""Whole runs, and the numbers of their results."""

import json
from dataclasses import replace

import pytest

from amp_nova.agent.loop import LoopSettings
from amp_nova.cmd.command import as_json
from amp_nova_lab import report
from amp_nova_lab.run import run
from tests.unit.lab.builders import guest, scenario


def test_the_result_has_the_keys_of_the_contract():
    """Keys and their order are those of the interface; unknown values are null."""
    made = scenario(guest("free"), guest("b", pref_core="0.5"))

    result = json.loads(as_json(report.rounded(run(made))))

    assert " ".join(result) == (
        "scenario policy duration_s throughput asp unfairness migrations cross_llc_migrations "
        "fast_idle_ratio vms"
    )
    assert " ".join(result["vms"]["free"]) == (
        "progress_refcores fast_share slowdown completion_s booked_refcores delivered_ratio "
        "delivered_ratio_min delivered_ratio_max"
    )
    assert result["vms"]["free"]["booked_refcores"] is None
    assert result["vms"]["b"]["delivered_ratio"] == 1.0


def test_a_guest_is_compared_with_itself_alone():
    """Sleeping half the time or having little work does not count as slowdown."""
    result = run(scenario(guest("half", utilization=0.5), guest("done", work=5.0), fast=2, slow=0))

    assert [v.slowdown for v in result.vms.values()] == pytest.approx([1.0, 1.0])
    assert result.vms["done"].completion_s == pytest.approx(5.0)
    assert result.unfairness == pytest.approx(1.0)


def test_a_host_without_guests_has_no_throughput():
    """Nor unfairness, which is 1 with a single guest."""
    empty = run(scenario())

    assert (empty.throughput, empty.asp, empty.unfairness) == (None, None, None)
    assert (empty.fast_idle_ratio, empty.vms) == (1.0, {})
    assert run(scenario(guest())).unfairness == 1.0
    assert run(scenario(guest(utilization=0.0))).unfairness is None


def test_a_window_is_a_second():
    """A shorter one at the end counts for the run, not for the extremes."""
    whole = run(scenario(guest(pref_core="0.5"), duration_s=0.5)).vms["vm"]

    assert (whole.delivered_ratio, whole.delivered_ratio_min) == (pytest.approx(1.0), None)


def test_without_enforcement_bookings_depend_on_the_core():
    """The same flavor gets twice as much on a fast core."""
    twins = [guest(t, start_on=t, pref_core="0.5") for t in ("fast", "slow")]

    result = run(replace(scenario(*twins), agent=LoopSettings(dry_run=True)))

    assert [v.delivered_ratio for v in result.vms.values()] == pytest.approx([4.0, 2.0])
