# SPDX-License-Identifier: Apache-2.0
"""Faults of libvirt, QEMU and domains beside real guests: each affects one thing only, and recovery
needs no operator."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from amp_nova.guard import record
from tests.support import fault_table
from tests.support.lab import FAST, SLOW, cgroup, quota, until

ROOT = Path(__file__).parents[2]
HALF = {"amp:pref_core": "0.5"}
PATIENCE_S = 60.0
HELD_S, HELD_S_OF_MANY = 120.0, 5.0
"""How long a domain's lock is held, with ``-m fault`` and in a run of all tests."""
AWAY_S = 8.0


def meddle(guest):
    """Remove a limit, as somebody else might."""
    (cgroup(guest) / "cpu.cfs_quota_us").write_text("-1")


def limited(guest, cores):
    """Whether a guest has this limit."""
    return quota(guest) == pytest.approx(cores, rel=0.002)


def libvirtd_pid() -> int:
    return int(Path("/run/libvirtd.pid").read_text())


def restart_libvirtd() -> None:
    """As an upgrade does: the daemon stops and starts again, the guests stay."""
    if Path("/run/systemd/system").is_dir():
        subprocess.run(["systemctl", "restart", "libvirtd"], check=True, timeout=60)
        return
    pid = libvirtd_pid()
    os.kill(pid, signal.SIGTERM)
    until(lambda: not Path(f"/proc/{pid}").exists(), 30, "libvirtd's end")
    time.sleep(2.5)
    subprocess.run([ROOT / "tools/libvirt-up"], check=True, timeout=60)


@pytest.mark.fault("libvirtd restarts", "bookings hold, newcomers follow")
def test_a_restart_of_libvirtd_stops_neither_agent_nor_bookings(guests, lab, agent):
    """Without libvirt, foreign changes are repaired; when it is back, new guests are limited."""
    guest = guests.guest("steady", HALF, cpuset=str(SLOW))
    agent.start()

    restart_libvirtd()
    meddle(guest)
    until(lambda: limited(guest, 0.5), 15, "the repaired limit")
    lab.reconnect()
    late = guests.guest("late", HALF, cpuset=str(FAST))

    until(lambda: limited(late, 0.25), 25, "a limit after the restart")
    assert agent.process.poll() is None
    assert agent.metric("amp_hypervisor_up") == 1


@pytest.mark.fault("cgroup cannot be written", "it fails for its domain alone, and is reported")
def test_a_read_only_cgroup_fails_for_its_domain_alone(guests, agent):
    """One domain's cgroup cannot be written: counted and reported; the other is enforced."""
    stuck = guests.guest("stuck", HALF, cpuset=str(FAST))
    neighbour = guests.guest("neighbour", HALF, cpuset=str(SLOW))
    folder = cgroup(stuck).parent
    read_only = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"

    agent.start("unshare", "--mount", "sh", "-c", f'{read_only} && exec "$@"', "sh")
    agent.next_cycle()

    assert limited(neighbour, 0.5)
    assert quota(stuck) is None
    assert agent.metric("amp_actuation_failures_total", reason="read_only") > 0
    assert "Read-only file system" in agent.cli("explain", stuck.spec.name).stdout
    assert agent.metric("amp_vcpu_unenforced_info", domain=stuck.spec.name) == 1


@pytest.mark.fault("libvirtd stopped (SIGSTOP)", "bookings hold; newcomers follow when it goes on")
def test_a_stopped_libvirtd(guests, agent, record_property):
    """It answers nobody; QEMU needs it for nothing."""
    guest = guests.guest("steady", HALF, cpuset=str(SLOW))
    agent.start()
    pid = libvirtd_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        end = time.monotonic() + AWAY_S
        meddle(guest)
        until(lambda: limited(guest, 0.5), PATIENCE_S, "the repair")
        until(lambda: agent.metric("amp_hypervisor_up") == 0, PATIENCE_S, "what schedulers hear")
        while time.monotonic() < end:
            agent.next_cycle()
            assert limited(guest, 0.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    began_s = time.monotonic()
    late = guests.guest("late", HALF, cpuset=str(FAST))
    until(lambda: limited(late, 0.25), PATIENCE_S, "the newcomer's limit")
    record_property("recovery_s", time.monotonic() - began_s)
    assert agent.process.poll() is None


@pytest.mark.fault("a domain's lock held for two minutes", "the others are as if it were not")
def test_a_domain_that_hangs(request, guests, agent, record_property):
    """Its QEMU is stopped while libvirt waits for an answer of it."""
    import libvirt

    stuck = guests.guest("stuck", HALF, cpuset=str(SLOW))
    neighbour = guests.guest("neighbour", HALF, cpuset=str(FAST))
    agent.start()
    os.kill(stuck.pid, signal.SIGSTOP)
    try:

        def hold():
            with contextlib.suppress(libvirt.libvirtError):
                libvirt.open("qemu:///system").lookupByName(stuck.spec.name).memoryStats()

        threading.Thread(target=hold, daemon=True).start()
        held_s = HELD_S if fault_table.alone(request.config) else HELD_S_OF_MANY
        end = time.monotonic() + held_s
        late = guests.guest("late", HALF, cpuset=str(FAST))
        until(lambda: limited(late, 0.25), PATIENCE_S, "the newcomer's limit")
        while time.monotonic() < end:
            meddle(neighbour)
            until(lambda: limited(neighbour, 0.25), PATIENCE_S, "the repair")
            assert limited(stuck, 0.5)
            # No more than three repairs a minute are made.
            time.sleep(min(25.0, max(0.0, end - time.monotonic())))
    finally:
        os.kill(stuck.pid, signal.SIGCONT)
    began_s = time.monotonic()
    agent.next_cycle()
    meddle(stuck)
    until(lambda: limited(stuck, 0.5), PATIENCE_S, "the repair of the one that hung")
    record_property("recovery_s", time.monotonic() - began_s)
    assert agent.process.poll() is None
    assert agent.metric("amp_lease_expirations_total") == 0


@pytest.mark.fault(
    "migration aborted, at its destination", "no trace of it; the others are as if it were not"
)
def test_a_domain_that_arrives_and_goes(guests, agent, record_property):
    """It is there, suspended, and then it is not, as often as somebody tries."""
    import libvirt

    from tests.guests.guest import domain_xml

    neighbour = guests.guest("neighbour", HALF, cpuset=str(SLOW))
    agent.start()
    spec = replace(neighbour.spec, name=f"{guests.prefix}-arriving", cpuset=str(FAST))
    record_property("times", 5)
    for moment_s in (0.0, 0.01, 0.1, 0.5, 2.0):
        flags = libvirt.VIR_DOMAIN_START_PAUSED
        arriving = guests.conn.createXML(domain_xml(spec, guests.image), flags)
        time.sleep(moment_s)
        arriving.destroy()
        assert limited(neighbour, 0.5)
    began_s = time.monotonic()
    until(
        lambda: not [s for s in agent.metrics() if s[1].get("domain") == spec.name],
        PATIENCE_S,
        "the end of its series",
    )
    record_property("recovery_s", time.monotonic() - began_s)

    def guarded():
        found = record.load_all(agent.state_path / record.FOLDER)
        return [made.name for _, made in found if made.vcpus]

    until(lambda: guarded() == [neighbour.spec.name], PATIENCE_S, "the end of its record")
    agent.next_cycle()
    assert agent.metric("amp_actuation_failures_total", reason="refused") in (None, 0.0)
