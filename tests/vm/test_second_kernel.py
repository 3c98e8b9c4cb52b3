# SPDX-License-Identifier: Apache-2.0
"""cgroup version 2, systemd and libvirt's scopes, in the order of an operator's life."""

import errno
import json
import os
import signal
import struct
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.injected import (
    MEMORY,
    PRCTL,
    SCHED_SETAFFINITY,
    SCHED_SETSCHEDULER,
    SETPRIORITY,
    SPIN,
    called,
    signalling,
    skip_elsewhere,
    thread_started,
)
from tests.vm.conftest import (
    GUARD,
    PIP,
    UNIT,
    Spinner,
    group,
    main_pid,
    quota,
    received,
    sh,
    until,
    upgrade,
    weight,
)

pytestmark = pytest.mark.skipif(
    not Path("/job/run").exists(), reason="runs in the machine of tools/vm"
)


def test_the_machine_is_what_it_claims_to_be():
    """Otherwise the rest proves nothing."""
    assert sh("stat -fc %T /sys/fs/cgroup") == "cgroup2fs"
    assert sh("ps -o comm= -p 1") == "systemd"
    assert sh("cat /sys/devices/system/cpu/cpu0/topology/thread_siblings_list") == "0-1"
    found = json.loads(sh("amp-nova topology --format json"))
    assert {t["name"] for t in found["core_types"]} == {"fast", "slow"}


def test_an_upgrade_with_guests_running(host):
    """First, so that the other tests are of the newer wheel: the limit stays in force."""
    booked = host.guest("booked", pref_core="0.5")
    host.enforced(booked)
    before, old = quota(booked), sh("amp-nova --version")

    upgrade()
    assert quota(booked) == before
    sh(f"systemctl enable --now {GUARD} 2>&1; systemctl restart {UNIT}")
    until(lambda: host.status(), 90, "the new agent")
    assert quota(booked) == before
    assert sh("amp-nova --version") != old


def check_delivery(guest, cores, *others):
    """A guest gets what a process gets that is limited to these cores by hand, and others more."""
    until(lambda: weight(guest) == 500, 30, "the weight of a booking")
    with closing(Spinner(guest, cores)) as by_hand:
        time.sleep(3)
        got, wanted, *rest = received(20, guest, by_hand, *others)
    print(
        f"{guest.spec.name}: {got:.4f} of the core, by hand {wanted:.4f}, ratio {got / wanted:.4f};"
        f" others {rest}"
    )
    assert got / wanted == pytest.approx(1.0, abs=0.03)
    return rest


@pytest.mark.parametrize(
    ("core_type", "booked", "cores"), [("fast", 0.5, 0.25), ("slow", 0.4, 0.4)]
)
def test_bookings_are_enforced_through_cpu_max(host, core_type, booked, cores):
    """A reference core is a slow one, so a fast core delivers it in half the time."""
    guest = host.guest("booked", pref_core=str(booked), core_type=core_type)
    host.enforced(guest)
    check_delivery(guest, cores)
    process = f"/proc/$(cat /run/libvirt/qemu/{guest.spec.name}.pid)/cgroup"
    limit = sh(f"cat /sys/fs/cgroup$(cut -d: -f3 {process})/../vcpu0/cpu.max")  # as in verify.rst
    assert int(limit.split()[0]) / int(limit.split()[1]) == pytest.approx(cores, rel=0.01)


def test_the_selftest_judges_this_machine():
    """cgroup version 2, and a core with two threads; the file names no host."""
    text = sh("amp-nova selftest --seconds 3 -f json || true")
    print(text)

    found = json.loads(text)
    checks = {(c["check"], c["core_type"]): c for c in found["checks"]}
    assert {name for name, _ in checks} >= {"coefficient", "share", "work beside siblings"}
    for key in (("share", "slow"), ("share", "fast"), ("share after a move", "fast")):
        assert 0.1 < checks[key]["measured"] <= 1.05 * checks[key]["promised"]
    assert checks["limit without an agent", "fast"]["verdict"] == "kept"
    assert os.uname().nodename not in text
    assert not list(Path("/sys/fs/cgroup").glob("**/amp-nova-[0-9]*-*"))


def test_weights_are_in_force_again_after_daemon_reloads(host):
    """systemd sets cpu.weight of libvirt's scopes to its default when it reloads."""
    booked, other = host.guest("booked", pref_core="0.5"), host.guest("other")
    host.enforced(booked)

    def right():
        return (weight(booked), weight(other)) == (500, 5)

    until(right, 30, "the weights")
    for _ in range(5):
        sh("systemctl daemon-reload")
        until(right, 15, "the weights after daemon-reload")
    assert quota(booked) is not None


@skip_elsewhere
def test_a_qemu_that_tampers_with_its_threads_gets_its_booking(host):
    """Its sandbox refuses other scheduling; names, signals and more threads gain nothing."""
    guest = host.guest("evil", pref_core="0.5", core_type="slow")
    neighbour = host.guest("neighbour", pref_core="0.2", core_type="slow")
    host.enforced(guest, neighbour)
    vcpu, threads = guest.task(), group(guest) / "cgroup.threads"
    priority = struct.pack("i", 50)

    assert called(vcpu, SCHED_SETAFFINITY, (0, 8, MEMORY), struct.pack("Q", 1)) == -errno.EPERM
    assert called(vcpu, SCHED_SETSCHEDULER, (0, 1, MEMORY), priority) == -errno.EPERM
    assert called(vcpu, SETPRIORITY, (0, 0, -20)) == -errno.EPERM
    assert thread_started(vcpu, signalling(guest.pid, int(vcpu.name), signal.SIGUSR1)) > 0
    assert all(thread_started(vcpu, SPIN) > 0 for _ in range(8))
    assert len(threads.read_text().split()) == 10
    assert called(vcpu, PRCTL, (15, MEMORY), b"worker\0") == 0
    with closing(Spinner(neighbour, 0.2)) as by_hand:
        began, before_us = time.monotonic(), used_us(threads.parent)
        got, wanted = received(60, neighbour, by_hand)
        cores = (used_us(threads.parent) - before_us) / 1e6 / (time.monotonic() - began)

    print(f"it got {cores:.4f} cores, its neighbour {got:.4f}, by hand {wanted:.4f}")
    assert 0.4 < cores <= 0.5 * 1.01
    assert got >= 0.97 * wanted


def used_us(cgroup):
    """CPU time of all threads of a cgroup so far, in microseconds."""
    return int((cgroup / "cpu.stat").read_text().split()[1])


def test_nobody_starves_beside_bookings_of_all_capacity(host):
    """Best effort gets a hundredth of a core for each vCPU, and the bookings theirs."""
    booked = host.guest("booked", pref_core="0.475", core_type="slow")
    others = [host.guest(f"other{i}", core_type="slow") for i in range(2)]
    host.enforced(booked)
    until(lambda: [weight(other) for other in others] == [5, 5], 30, "the weights")

    # Half of the capacity is booked, the other half limited by hand.
    assert min(check_delivery(booked, 0.475, *others)) >= 0.01


def test_a_killed_agent_is_restarted_and_the_limit_stays(host):
    """The unit restarts it; the guest notices nothing."""
    booked = host.guest("booked", pref_core="0.5")
    host.enforced(booked)
    before, pid = quota(booked), main_pid()

    sh(f"systemctl kill -s KILL {UNIT}")
    assert quota(booked) == before
    until(lambda: main_pid() not in (0, pid), 30, "another agent")
    until(lambda: host.status(), 60, "its first cycle")
    assert quota(booked) == before


def test_a_stopped_agent_is_replaced(host):
    """The watchdog: an agent that completes no cycles does not stay."""
    if sh(f"systemctl show -P WatchdogUSec {UNIT}") in ("0", "infinity"):
        pytest.skip("the unit has no watchdog")
    pid = main_pid()
    os.kill(pid, signal.SIGSTOP)

    until(lambda: main_pid() not in (0, pid), 180, "another agent")
    until(lambda: host.answers(), 60, "its first cycle")
    assert sh(f"systemctl show -P NRestarts {UNIT}") != "0"


def test_a_cpu_goes_offline_and_comes_back(host):
    """A booking keeps its capacity on the core type that is left."""
    booked = host.guest("booked", pref_core="0.5")
    host.enforced(booked)
    online = Path("/sys/devices/system/cpu/cpu1/online")
    online.write_text("0")
    try:
        until(lambda: quota(booked) == pytest.approx(0.25), 30, "the fast core's limit")
    finally:
        online.write_text("1")
    until(lambda: host.status()["booked"]["vcpus"][0]["note"] is None, 30, "a booking that is kept")


def test_libvirtd_restarts(host):
    """Neither the agent nor the booking ends with it."""
    booked = host.guest("booked", pref_core="0.5")
    host.enforced(booked)
    pid = main_pid()

    sh("systemctl restart libvirtd")
    host.reconnect()
    later = host.guest("later", pref_core="0.25")
    host.enforced(later)
    assert main_pid() == pid
    assert quota(booked) is not None


@pytest.fixture
def unprivileged(host):
    """Agent and guard as a user whom polkit lets change domains: doc/source/admin/writers.rst."""
    page = Path("/job/writers.rst").read_text().split("\n\n")
    commands, drop_in, rules = (
        next(textwrap.dedent(block) for block in page if first in block)
        for first in ("    usermod", "# /etc/systemd/system", "// /etc/polkit-1")
    )
    config = Path("/etc/amp-nova/amp-nova.conf")
    before = config.read_text()
    made = {
        Path("/etc/polkit-1/rules.d/50-amp-nova.rules"): rules,
        Path(f"/etc/systemd/system/{UNIT}.d/libvirt.conf"): drop_in,
    }
    sh("amp-nova release --all; " + f"systemctl stop {UNIT} {GUARD}")
    sh(commands)
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    config.write_text(before + "[agent]\nwriter = libvirt\n")
    sh("echo 'access_drivers = [ \"polkit\" ]' >> /etc/libvirt/libvirtd.conf")
    sh(f"systemctl daemon-reload; systemctl restart libvirtd; systemctl start {GUARD} {UNIT}")
    host.reconnect()
    until(host.answers, 120, "the agent")
    yield host
    sh(f"systemctl stop {UNIT} {GUARD}")
    host.clear()
    for path in made:
        path.unlink()
    config.write_text(before)
    sh("sed -i '/^access_drivers/d' /etc/libvirt/libvirtd.conf; rm -rf /run/amp-nova")
    sh("gpasswd --delete amp-nova libvirt")
    sh(f"systemctl daemon-reload; systemctl restart libvirtd; systemctl start {GUARD}")
    host.reconnect()


def test_an_unprivileged_agent_holds_a_booking_through_libvirt(unprivileged):
    """The kernel has the limit, libvirt shows it, and the user may do nothing else."""
    host = unprivileged
    uid = sh(f"stat -c %U /proc/{main_pid()}")
    half = host.guest("half", pref_core="0.5", core_type="fast")
    host.enforced(half)

    assert uid == "amp-nova"
    check_delivery(half, 0.25)
    period, quota_us = (
        int(sh(f"virsh schedinfo half | awk '/^{name}/ {{print $3}}'"))
        for name in ("vcpu_period", "vcpu_quota")
    )
    assert quota_us / period == pytest.approx(quota(half))
    as_user = "setpriv --reuid=amp-nova --regid=amp-nova --init-groups"
    refused = sh(f"{as_user} virsh -c qemu:///system destroy half 2>&1", check=False)
    assert "access denied" in refused
    assert half.domain.isActive()


def test_removal_leaves_nothing(host):
    """As the guide says: release, disable, remove."""
    booked, other = host.guest("booked", pref_core="0.5"), host.guest("other")
    host.enforced(booked)
    until(lambda: weight(other) == 5, 30, "the least weight")

    sh(f"systemctl disable --now {UNIT} 2>&1")
    print(sh("amp-nova release --all"))
    sh(f"systemctl disable --now {GUARD} 2>&1")
    sh(f"{PIP} uninstall -y amp-nova")
    assert quota(booked) is None
    assert weight(other) == 100
    affinity = os.sched_getaffinity(booked.pid)
    assert affinity == set(range(os.cpu_count() or 0))
    assert group(booked).exists()
