"""Faults on real hosts: each affects one thing only, and recovery needs no operator."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from amp_nova.agent.loop import Loop, Settings
from tests.lab import FAST, SLOW, cgroup, quota, until

ROOT = Path(__file__).parents[2]

HALF = {"amp:pref_core": "0.5"}


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
    (cgroup(guest) / "cpu.cfs_quota_us").write_text("15000")
    until(lambda: quota(guest) == pytest.approx(0.5, rel=0.002), 15, "the repaired limit")
    lab.reconnect()
    late = guests.guest("late", HALF, cpuset=str(FAST))

    until(lambda: quota(late) == pytest.approx(0.25, rel=0.002), 25, "a limit after the restart")
    assert agent.process.poll() is None
    assert agent.metric("amp_hypervisor_up") == 1


@pytest.mark.fault("domain ends within a cycle", "no failure; its neighbour is limited")
def test_a_domain_destroyed_in_the_middle_of_a_cycle_affects_no_other(guests, agent):
    """It ends between observation and action: no failure, and its neighbour is limited."""
    from amp_nova import conf as options
    from amp_nova.agent.wiring import make_sensor, make_writer

    doomed = guests.guest("doomed", HALF, cpuset=str(FAST))
    neighbour = guests.guest("neighbour", HALF, cpuset=str(SLOW))
    conf = options.load(files=[str(agent.config)])
    sensor = make_sensor(conf)
    writer = make_writer(conf, sensor)

    class Executioner:
        """An actuator that destroys the domain before its first write."""

        done = False

        def apply(self, changes):
            if not self.done:
                doomed.domain.destroy()
                self.done = True
            return writer.apply(changes)

    loop = Loop(sensor, Executioner(), Settings())
    first = loop.cycle()
    until(lambda: not Path(f"/proc/{doomed.pid}").exists(), 10, "the end of QEMU")
    second = loop.cycle()

    assert first.totals.failures == second.totals.failures == {}
    assert quota(neighbour) == pytest.approx(0.5, rel=0.002)
    until(
        lambda: [d.domain.name for d in loop.cycle().domains] == [neighbour.spec.name],
        5,
        "a cycle without the destroyed domain",
    )


GARBAGE = {
    "bad-value": {"specs": {"amp:pref_core": "a lot"}},
    "two-owners": {"specs": {"amp:pref_core": "0.5", "quota:cpu_quota": "10000"}},
    "no-such-vcpu": {"specs": {"amp:pref_core.7": "0.5"}},
    "no-nova": {"metadata": '<x:y xmlns:x="http://example.org/other">amp:pref_core=9</x:y>'},
}


@pytest.mark.fault(
    "garbage in a domain's metadata", "that domain alone is without a booking, with the reason"
)
def test_garbage_in_the_metadata_makes_an_instance_best_effort_and_touches_no_other(guests, agent):
    """Each is without a limit, with the reason; the neighbour's booking is enforced."""
    garbage = {name: guests.guest(name, cpuset=str(FAST), **more) for name, more in GARBAGE.items()}
    neighbour = guests.guest("good", HALF, cpuset=str(SLOW))

    agent.start()

    assert quota(neighbour) == pytest.approx(0.5, rel=0.002)
    assert {name: quota(guest) for name, guest in garbage.items()} == dict.fromkeys(GARBAGE)
    for name in ("bad-value", "two-owners", "no-such-vcpu"):
        explained = agent.cli("explain", garbage[name].spec.name).stdout
        assert "Its booking is not enforced: " in explained, name
        assert agent.metric("amp_instance_problem_info", domain=garbage[name].spec.name) == 1
    assert "'a lot'" in agent.cli("explain", garbage["bad-value"].spec.name).stdout


@pytest.mark.fault("cgroup cannot be written", "it fails for its domain alone, and is reported")
def test_a_read_only_cgroup_fails_for_its_domain_alone(guests, agent):
    """One domain's cgroup cannot be written: counted and reported; the other is enforced."""
    stuck = guests.guest("stuck", HALF, cpuset=str(FAST))
    neighbour = guests.guest("neighbour", HALF, cpuset=str(SLOW))
    folder = cgroup(stuck).parent
    read_only = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"

    agent.start("unshare", "--mount", "sh", "-c", f'{read_only} && exec "$@"', "sh")
    agent.next_cycle()

    assert quota(neighbour) == pytest.approx(0.5, rel=0.002)
    assert quota(stuck) is None
    assert agent.metric("amp_actuation_failures_total", reason="read_only") > 0
    assert "Read-only file system" in agent.cli("explain", stuck.spec.name).stdout
    assert agent.metric("amp_vcpu_unenforced_info", domain=stuck.spec.name) == 1
