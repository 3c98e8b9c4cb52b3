"""Bookings on real guests, measured by the kernel and the guests, not by the agent."""

import time

import pytest

from tests.lab import FAST, SLOW, affinity, both_writers, cgroup, quota, unless_stolen, until
from tests.tables import cells

HALF = {"amp:pref_core": "0.5"}


def shares(guests, seconds=2.0):
    """CPU share of vCPU 0 of each guest, and its rounds of work per second."""
    before = [(g.cpu_ns()[0], g.rounds()[0]) for g in guests]
    begin = time.monotonic()
    time.sleep(seconds)
    after = [(g.cpu_ns()[0], g.rounds()[0]) for g in guests]
    took_s = time.monotonic() - begin
    return [
        ((ns_after - ns) / 1e9 / took_s, (work_after - work) / took_s)
        for (ns, work), (ns_after, work_after) in zip(before, after, strict=True)
    ]


@pytest.mark.measures
@both_writers
def test_the_same_booking_is_the_same_capacity_on_both_core_types(guests, slow_core, agent):
    """Without the agent a fast core does far more work; with it each gets half a reference core."""
    fast = guests.guest("fast", HALF, cpuset=str(FAST))
    slow = guests.guest("slow", HALF, cpuset=str(SLOW))
    (_, fast_work), (_, slow_work) = shares([fast, slow])
    assert fast_work > 1.2 * slow_work

    agent.start()

    assert quota(fast) == pytest.approx(0.25, rel=0.002)
    assert quota(slow) == pytest.approx(0.5, rel=0.002)

    def kept():
        (fast_share, _), (slow_share, _) = shares([fast, slow], 3)
        assert fast_share == pytest.approx(0.25, rel=0.15)
        assert slow_share == pytest.approx(0.5, rel=0.15)

    unless_stolen(kept)
    until(lambda: agent.metric("amp_vcpu_delivered_ratio", domain=fast.spec.name), 10, "a window")
    assert agent.metric("amp_vcpu_delivered_ratio", domain=fast.spec.name) == pytest.approx(
        1, abs=0.15
    )


def test_each_vcpu_of_a_guest_has_the_limit_of_its_own_core_type(guests, agent):
    """One guest, two vCPUs on different core types with bookings of their own."""
    specs = {"amp:pref_core": "0.5", "amp:pref_core.1": "0.8"}
    guest = guests.guest("both", specs, vcpus=2, pins={0: str(FAST), 1: str(SLOW)})

    agent.start()

    assert quota(guest, 0) == pytest.approx(0.25, rel=0.002)
    assert quota(guest, 1) == pytest.approx(0.8, rel=0.002)


@both_writers
def test_a_booking_without_a_core_type_goes_to_the_slow_core(guests, agent):
    """A vCPU that may run anywhere is kept on one core type: the slow one if that suffices."""
    guest = guests.guest("free", HALF)

    agent.start()

    assert quota(guest) == pytest.approx(0.5, rel=0.002)
    status = agent.cli("status")
    assert status.returncode == 0
    (row,) = (r for r in cells(status.stdout) if r[0] == guest.spec.name)
    assert row[1:3] == ["0", "0.5"]
    assert "slow" in row


@both_writers
def test_a_move_by_nova_or_an_operator_is_followed_at_once(guests, agent):
    """When libvirt pins the vCPU to the other core type, the limit follows within a second."""
    guest = guests.guest("mover", HALF, cpuset=f"{FAST},{SLOW}", pins={0: str(FAST)})
    agent.start()
    assert quota(guest) == pytest.approx(0.25, rel=0.002)

    guest.pin(0, [SLOW], 2)

    until(lambda: quota(guest) == pytest.approx(0.5, rel=0.002), 0.9, "the slow core's limit")
    guest.pin(0, [FAST], 2)
    until(lambda: quota(guest) == pytest.approx(0.25, rel=0.002), 0.9, "the fast core's limit")


def test_a_guest_that_starts_later_is_limited_at_once(guests, agent):
    """A life-cycle event starts a cycle at once."""
    agent.start()

    guest = guests.guest("late", HALF, cpuset=str(SLOW))

    until(lambda: quota(guest) is not None, 2, "the limit of a guest that started")
    assert quota(guest) == pytest.approx(0.5, rel=0.002)


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

    assert agent.metric("amp_writes_total") == writes > 0
    assert agent.metric("amp_libvirt_calls_total") <= calls + 1


def test_a_best_effort_guest_is_left_alone_without_a_policy(guests, agent):
    """No booking, no limit, no affinity."""
    agent.config.write_text(agent.config.read_text() + "policy = none\n")
    guest = guests.guest("free", {}, cpuset=f"{FAST},{SLOW}")

    agent.start()
    agent.next_cycle()

    assert quota(guest) is None
    assert agent.metric("amp_writes_total") == 0


@both_writers
def test_a_best_effort_guest_gets_the_fast_core_and_no_limit(guests, agent):
    """The default policy: while there is a core for each vCPU, the fast one is in use."""
    guest = guests.guest("free", {}, cpuset=f"{FAST},{SLOW}")

    agent.start()
    agent.next_cycle(4)

    assert quota(guest) is None
    assert affinity(guest) == {FAST}


def test_an_ips_booking_that_is_not_enforced_is_reported(guests, agent):
    """Nothing counts the guest's instructions, so there is no limit."""
    guest = guests.guest("ips", {"amp:ips": "100M"}, cpuset=str(SLOW))

    agent.start()

    assert quota(guest) is None
    assert agent.metric("amp_vcpu_booked_ips", domain=guest.spec.name) == 100e6
    assert "Ips" in agent.cli("explain", guest.spec.name).stdout
    why = "amp_vcpu_unenforced_info"
    assert agent.metric(why, domain=guest.spec.name) == 1


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


def test_pause_lets_an_operator_work_by_hand(guests, agent):
    """What an operator sets while an instance is paused stays until the pause ends."""

    guest = guests.guest("pause", HALF, cpuset=str(SLOW))
    agent.start()

    assert agent.cli("pause", guest.spec.name, "--ttl", "8").returncode == 0
    agent.next_cycle()
    (cgroup(guest) / "cpu.cfs_quota_us").write_text("-1")
    agent.next_cycle(1)

    assert quota(guest) is None
    assert "paused" in agent.cli("explain", guest.spec.name).stdout
    until(lambda: quota(guest) == pytest.approx(0.5, rel=0.002), 12, "the limit after the pause")


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


def test_a_configured_booking_serves_domains_without_metadata(guests, lab, tmp_path):
    """Instances created before Nova 32 get their booking from the configuration."""
    from tests.lab import Agent

    guest = guests.guest("old", metadata="", cpuset=str(SLOW))
    more = f"booking = {lab.prefix}-old amp:pref_core=0.3\n"
    agent = Agent(tmp_path / "agent", more=more)
    try:
        agent.start()
        assert quota(guest) == pytest.approx(0.3, rel=0.002)
    finally:
        agent.stop()


def test_dry_run_prints_changes_and_makes_none(guests, agent):
    """--dry-run prints each change with its reason; limits are as before."""
    import subprocess

    guest = guests.guest("dry", HALF, cpuset=str(FAST))

    ran = subprocess.run(agent.command("--dry-run"), capture_output=True, text=True, check=False)

    assert ran.returncode == 0
    assert f"{guest.spec.name} vCPU 0: quota 5000/20000 us (0.5 refcores / 2 on fast)" in ran.stdout
    assert quota(guest) is None


@pytest.mark.measures
@both_writers
def test_neighbours_without_a_booking_take_nothing_from_it(guests, agent):
    """Two guests that use all they can get share a CPU with a booking of 0.8 of it."""
    booked = guests.guest("booked", {"amp:pref_core": "0.8"}, cpuset=str(SLOW))
    greedy = [guests.guest(f"greedy{i}", cpuset=str(SLOW)) for i in (1, 2)]
    (alone, *_) = shares([booked, *greedy])
    assert alone[0] < 0.5

    agent.start()

    def kept():
        (share, _), *rest = shares([booked, *greedy], 3)
        assert share == pytest.approx(0.8, rel=0.15)
        assert sum(share for share, _ in rest) > 0.1
        assert min(share for share, _ in rest) >= 0.01

    unless_stolen(kept)
    released = agent.cli("release", "--all")
    assert (released.returncode, released.stderr) == (0, "")
    for guest in greedy:
        assert (cgroup(guest).parent / "cpu.shares").read_text().strip() == "1024"
