# SPDX-License-Identifier: Apache-2.0
"""What holds on a real host when the agent is gone: leases, records and the guard."""

import contextlib
import json
import os
import subprocess

import pytest

from tests.support.lab import (
    FAST,
    SLOW,
    Agent,
    affinity,
    cgroup,
    measured,
    quota,
    undisturbed,
    until,
    usage,
)

HALF = {"amp:pref_core": "0.5"}
LEASE_S = 3.0


@pytest.fixture
def agent(tmp_path):
    """An agent with a short lease; not started yet."""
    made = Agent(tmp_path / "agent", more=f"lease_s = {LEASE_S}\n")
    yield made
    made.stop()


def least(guest):
    """Whether a guest has the CPU weight of best effort, read from the kernel."""
    return (cgroup(guest).parent / "cpu.shares").read_text().strip() == "51"


def fill(path):
    """Write until no byte is free."""
    with path.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)


def expired(agent):
    """Whether the guard has acted."""
    return (agent.state_path / "lease.expirations").exists()


@pytest.mark.measures
@pytest.mark.fault("agent killed, beside real guests", "bookings hold, best effort keeps its floor")
def test_bookings_hold_beside_a_newcomer_after_a_kill_and_nobody_starves(guests, agent):
    """The weights stay: the dead agent knows nothing of the newcomer, and needs not."""
    booked = guests.guest("booked", HALF, cpuset=str(SLOW))
    victim = guests.guest("victim", cpuset=str(SLOW))
    agent.start()
    until(lambda: least(victim), 5, "the least weight")
    agent.next_cycle(1)

    agent.kill()
    newcomer = guests.guest("newcomer", cpuset=str(SLOW))
    until(lambda: expired(agent), LEASE_S + 20, "the end of the lease")

    def kept():
        got = usage([booked, victim, newcomer], 6.0)
        (share,), (others,), (new,) = ([window.cores for window in of_guest] for of_guest in got)
        print(f"booked {share:.3f}, best effort {others:.4f}, newcomer {new:.3f}")
        assert share == pytest.approx(0.5, rel=0.03)
        assert others >= 0.01

    with undisturbed(booked):
        measured(kept)
    assert quota(booked) == pytest.approx(0.5, rel=0.002)


def test_the_guard_survives_the_agent_and_ends_when_nothing_is_left(guests, agent):
    """Its own session; another agent uses the one that is there; no guest, no guard."""
    guest = guests.guest("only", HALF, cpuset=str(SLOW))
    agent.start()
    until(lambda: agent.guard_pid() is not None, 10, "the guard")
    pid = agent.guard_pid()
    assert os.getsid(pid) == pid

    agent.kill()
    assert quota(guest) == 0.5
    agent.start()
    agent.next_cycle()
    assert agent.metric("amp_writes_total") == 0
    assert (agent.guard_pid(), quota(guest)) == (pid, 0.5)
    agent.kill()
    guests.clear()

    until(lambda: agent.guard_pid() is None, LEASE_S + 20, "the guard's end")
    agent.start()
    until(lambda: not list((agent.state_path / "records").glob("*.json")), 10, "the records' end")


def test_release_needs_neither_agent_nor_libvirt_nor_the_booking(guests, lab, tmp_path):
    """A booking line that is gone, an agent that is gone, no libvirt: the record is enough."""
    agent = Agent(tmp_path / "agent", more=f"booking = {lab.prefix}-old amp:pref_core=0.5\n")
    guest = guests.guest("old", metadata="", cpuset=f"{FAST},{SLOW}")
    victim = guests.guest("victim", cpuset=f"{FAST},{SLOW}")
    try:
        agent.start()
        until(lambda: quota(guest) == pytest.approx(0.5) and least(victim), 5, "the limit")
        agent.kill()
        text = agent.config.read_text().replace("booking =", "# booking =")
        agent.config.write_text(text + "libvirt_uri = qemu+unix:///system?socket=/nowhere\n")

        dry = agent.cli("release", "--all", "--dry-run", "--format", "json")
        assert quota(guest) == pytest.approx(0.5)
        done = agent.cli("release", "--all", "--format", "json")

        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(dry.stdout) == json.loads(done.stdout)
        changes = json.loads(done.stdout)["changes"]
        name, other = guest.spec.name, victim.spec.name
        assert f"{name} vCPU 0: pCPUs 0-1, no quota" in changes
        assert f"{other}: weight 1024" in changes
        assert (quota(guest), affinity(guest), least(victim)) == (None, {FAST, SLOW}, False)
    finally:
        agent.stop()


@pytest.mark.fault("disk full at a release", "the release is complete")
def test_release_works_when_the_state_folder_is_full(guests, tmp_path):
    """Not a byte is free for the pause; a running agent leaves the instance alone all the same."""
    folder = tmp_path / "agent"
    (folder / "state").mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0755", "amp-test", str(folder / "state")]
    subprocess.run(mount, check=True)
    agent = Agent(folder)
    try:
        guest = guests.guest("full", HALF, cpuset=str(SLOW))
        agent.start()
        fill(folder / "state/filler")

        done = agent.cli("release", guest.spec.name)

        assert (done.returncode, done.stderr) == (0, "")
        agent.next_cycle()
        assert quota(guest) is None
    finally:
        agent.stop()
        subprocess.run(["umount", "-l", str(folder / "state")], check=True)


def test_foreign_changes_of_weights_and_of_bursts_are_repaired_and_counted(guests, agent):
    """Each by its cause; after three repairs within a minute the instance is left alone."""
    booked = guests.guest("booked", HALF, cpuset=str(SLOW))
    victim = guests.guest("victim", cpuset=str(SLOW))
    agent.start()
    until(lambda: least(victim), 5, "the least weight")
    weight = cgroup(victim).parent / "cpu.shares"

    burst = cgroup(booked) / "cpu.cfs_burst_us"
    burst.write_text(str(int((cgroup(booked) / "cpu.cfs_quota_us").read_text())))
    for count in (1, 2, 3):
        weight.write_text("2048")
        until(lambda: least(victim), 5, "the repair")
        agent.next_cycle()
        assert agent.metric("amp_enforcement_drift_total", cause="weight") == count
    weight.write_text("2048")
    agent.next_cycle(3)
    assert not least(victim)
    until(lambda: burst.read_text().strip() == "0", 20, "the end of the burst")
    agent.next_cycle()
    assert agent.metric("amp_enforcement_drift_total", cause="burst") == 1
