# SPDX-License-Identifier: Apache-2.0
"""Bookings on real guests, measured by the kernel and the guests, not by the agent."""

from statistics import fmean

import pytest

from tests.support.lab import (
    CYCLE_S,
    FAST,
    LIMITED,
    SLOW,
    both_writers,
    cgroup,
    measured,
    quota,
    undisturbed,
    until,
    usage,
)

HALF = {"amp:pref_core": "0.5"}
WINDOW_S, TICK_S = 3.0, 0.004


def assert_in_band(windows, cores):
    """CPU time in windows of 3 s is as exact as doc/source/user/index.rst promises.

    But for one timer tick: a thread's CPU time is brought up to date that often.
    """
    ratios, tick = [window.cores / cores for window in windows], TICK_S / WINDOW_S / cores
    print(f"of {cores:.3f} cores: " + ", ".join(f"{ratio:.4f}" for ratio in ratios))
    assert fmean(ratios) == pytest.approx(1.0, abs=0.01 + tick / len(ratios))
    assert min(ratios) >= 0.97 - tick
    assert max(ratios) <= 1.03 + tick


@pytest.mark.measures
def test_bookings_are_kept_within_the_bands_that_tenants_are_told(guests, agent):
    """The mean within 1 %, windows of 3 s within 3 %, from a tenth of a reference core up."""
    booked = {
        guests.guest(f"b{cpu}-{b}", {"amp:pref_core": str(b)}, cpuset=str(cpu)): b / coefficient
        for cpu, coefficient in ((FAST, 2.0), (SLOW, 1.0))
        for b in (0.1, 0.5)
    }
    agent.start()
    agent.next_cycle(4)

    def kept():
        used = usage([*booked], WINDOW_S, windows=5)
        for windows, cores in zip(used, booked.values(), strict=True):
            assert_in_band(windows, cores)
        work = [fmean(w.rounds_per_s for w in windows) for windows in used]
        for core in (0, 2):  # whatever the speed of this core at this time
            assert work[core + 1] / work[core] == pytest.approx(5.0, rel=0.1)

    with undisturbed(next(iter(booked)), LIMITED):
        measured(kept)


def test_each_vcpu_of_a_guest_has_the_limit_of_its_own_core_type(guests, agent):
    """One guest, two vCPUs on different core types with bookings of their own."""
    specs = {"amp:pref_core": "0.5", "amp:pref_core.1": "0.8"}
    guest = guests.guest("both", specs, vcpus=2, pins={0: str(FAST), 1: str(SLOW)})

    agent.start()

    assert quota(guest, 0) == pytest.approx(0.25, rel=0.002)
    assert quota(guest, 1) == pytest.approx(0.8, rel=0.002)


@both_writers
def test_a_move_by_nova_or_an_operator_is_followed_at_once(guests, agent):
    """When libvirt pins the vCPU to the other core type, the limit does not wait for a cycle."""
    guest = guests.guest("mover", HALF, cpuset=f"{FAST},{SLOW}", pins={0: str(FAST)})
    every = f"cycle_s = {CYCLE_S}"
    agent.config.write_text(agent.config.read_text().replace(every, "cycle_s = 10\nlease_s = 60"))
    agent.start(settle=False)
    until(lambda: quota(guest) == pytest.approx(0.25, rel=0.002), 15, "the first limit")

    guest.pin(0, [SLOW], 2)

    until(lambda: quota(guest) == pytest.approx(0.5, rel=0.002), 3, "the slow core's limit")
    guest.pin(0, [FAST], 2)
    until(lambda: quota(guest) == pytest.approx(0.25, rel=0.002), 3, "the fast core's limit")


def test_emulator_threads_are_not_limited(guests, agent):
    """They stay in a group of their own."""

    guest = guests.guest("emulator", HALF, cpuset=str(SLOW))
    agent.start()

    emulator = cgroup(guest).parent / "emulator"
    assert str(guest.pid) in (emulator / "tasks").read_text().split()
    assert (emulator / "cpu.cfs_quota_us").read_text().strip() == "-1"


@both_writers
def test_nothing_is_written_in_the_steady_state(guests, agent):
    """Once bookings are in force; and libvirt is asked for its list of domains at most."""
    guest = guests.guest("steady", HALF, cpuset=str(SLOW))
    agent.start()
    agent.next_cycle()
    writes, calls = agent.metric("amp_writes_total"), agent.metric("amp_libvirt_calls_total")
    assert quota(guest) == pytest.approx(0.5, rel=0.002)

    agent.next_cycle(3)

    assert agent.metric("amp_writes_total") == writes
    assert writes + agent.failures() > 0  # libvirt may do what it answers too late
    assert agent.metric("amp_libvirt_calls_total") <= calls + 1


@both_writers
def test_release_restores_what_the_flavor_alone_asks_for(guests, agent):
    """No limit and no affinity, and the agent changes nothing until the instance is resumed."""
    guest = guests.guest("release", HALF, cpuset=f"{FAST},{SLOW}")
    agent.start()
    assert quota(guest) == pytest.approx(0.5, rel=0.002)

    released = agent.cli("release", guest.spec.name)

    assert (released.returncode, released.stderr) == (0, "")
    assert quota(guest) is None
    agent.next_cycle()
    assert quota(guest) is None
    assert agent.cli("resume", guest.spec.name).returncode == 0
    until(lambda: quota(guest) == pytest.approx(0.5, rel=0.002), 3, "the limit after resume")


@both_writers
def test_a_foreign_change_is_repaired_and_counted(guests, agent):
    """A limit that something else wrote is replaced within a cycle and counted as drift."""

    guest = guests.guest("drift", HALF, cpuset=str(SLOW))
    agent.start()

    (cgroup(guest) / "cpu.cfs_quota_us").write_text("15000")

    until(lambda: quota(guest) == pytest.approx(0.5, rel=0.002), 3, "the repaired limit")
    agent.next_cycle()
    assert agent.metric("amp_enforcement_drift_total", cause="quota") == 1


@both_writers
def test_a_quota_in_the_definition_stays(guests, agent):
    """If libvirt's definition has a quota of its own, it stays and is reported."""
    cputune = "<period>50000</period><quota>30000</quota>"
    guest = guests.guest("owned", HALF, cpuset=str(SLOW), cputune=cputune)

    agent.start()
    agent.next_cycle()

    assert quota(guest) == pytest.approx(0.6)
    assert "libvirt definition sets a CPU quota" in agent.cli("explain", guest.spec.name).stdout
