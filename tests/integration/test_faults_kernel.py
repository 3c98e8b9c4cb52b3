# SPDX-License-Identifier: Apache-2.0
"""Faults on stand-ins for domains: real agents, cgroups and threads, but no guests."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from amp_nova.guard import record
from tests.support.lab import FAST, SLOW, until
from tests.support.stands import DEFAULT, StandHost, host, why_not

PATIENCE_S = 60.0
BOOKINGS = "bookings hold, nothing else is written, the agent goes on"

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture
def here(tmp_path: Path) -> Iterator[StandHost]:
    """A host of stand-ins under control of an agent."""
    with host(tmp_path / "host") as made:
        made.start()
        until(made.controlled, PATIENCE_S, "control")
        yield made


class Watch:
    """How long it takes until things are right again."""

    def __init__(self, record_property, times=1):
        self._record, self._began_s = record_property, time.monotonic()
        record_property("times", times)

    def until(self, condition, what):
        """Wait for it; the time is that since the beginning."""
        until(condition, PATIENCE_S, what)
        self._record("recovery_s", time.monotonic() - self._began_s)


def cycles(here, count=3):
    """Let some cycles pass."""
    here.next_cycle(count)


@pytest.mark.fault(
    "agent stopped (SIGSTOP)",
    "the safe state after lease + 2 cycles; when it is continued, it adopts what the guard left",
)
def test_a_stopped_agent(here, record_property):
    """The guard acts in its place, which is no foreign change."""
    stranger = here.stranger.state()
    here.process.send_signal(signal.SIGSTOP)
    watch = Watch(record_property)
    watch.until(here.safe, "the safe state")
    here.process.send_signal(signal.SIGCONT)

    until(here.controlled, PATIENCE_S, "control")
    cycles(here)
    assert here.controlled()
    assert here.stranger.state() == stranger
    assert here.metric("amp_lease_expirations_total") == 1
    for cause in ("quota", "weight", "affinity"):
        assert here.metric("amp_enforcement_drift_total", cause=cause) == 0


def test_a_single_cycle_beside_the_service_and_without_it(here):
    """It refuses; or it has a lease, and a guard that does not keep a reader of its output."""

    def once():
        command = here.command("--once")
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    beside = once()
    assert beside.returncode == 1
    assert f"another amp-nova-agent runs here: process {here.process.pid} (" in beside.stderr

    here.stop()
    until(lambda: here.guard_pid() is None, PATIENCE_S, "the end of the guard")
    here.booked.set("cpu.cfs_quota_us", -1)
    alone = once()
    assert alone.returncode == 0, alone.stderr
    assert here.keeps_booking(here.booked)
    until(here.guard_pid, PATIENCE_S, "a guard")
    until(here.safe, PATIENCE_S, "the safe state")


@pytest.mark.fault("lock held by another process", "the guard acts; agent and commands name it")
def test_a_held_lock(here, record_property):
    """By a process that is stopped while it has it."""
    path = here.state_path / "cycle.lock"
    ready = "import fcntl,sys,time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)"
    command = ["python3", "-c", f"{ready}; print(flush=True); time.sleep(600)", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            holder.stdout.readline()
            here.booked.set("cpu.cfs_quota_us", -1)
            watch = Watch(record_property)
            watch.until(here.safe, "the safe state")
            until(lambda: f"process {holder.pid} (" in here.log.read_text(), PATIENCE_S, "the name")
            refused = here.cli("pause", here.booked.name, "--ttl", "9")
            assert refused.returncode == 2
            assert f"process {holder.pid} (" in refused.stderr
            assert refused.stderr.count("\n") == 1
        finally:
            holder.kill()
    until(here.controlled, PATIENCE_S, "control")


def full(folder: Path, inodes: int) -> None:
    """A file system with room for so many files, the first of which is its root."""
    folder.mkdir(exist_ok=True)
    options = f"size=256k,nr_inodes={inodes},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "amp-test", str(folder)], check=True)


def recorded(here: StandHost) -> bool:
    """Whether everything that is limited has a record, which is written before the limit."""
    limited = {s.name for s in here.stands if s.quota is not None or s.shares != DEFAULT}
    found = dict(record.load_all(here.state_path / record.FOLDER))
    return limited <= {d.name for d in found.values() if not isinstance(d, Exception)}


@pytest.mark.fault(
    "disk full at each new file",
    "nothing changes without a record, the agent says so; bookings hold once there is room",
)
@pytest.mark.parametrize("inodes", range(1, 13))
def test_a_full_disk(tmp_path, record_property, inodes):
    """The state folder has room for so many files only."""
    with host(tmp_path / "host") as here:
        full(here.state_path, inodes)
        try:
            end = time.monotonic() + 2.0
            started = 0
            while time.monotonic() < end:
                if here.process is None or here.process.poll() is not None:
                    # Not 2: its unit starts it again.
                    assert here.process is None or here.process.returncode == 1
                    here.begin()
                    started += 1
                assert recorded(here)
                time.sleep(0.02)
            assert "Traceback" not in here.log.read_text()

            subprocess.run(
                ["mount", "-o", "remount,nr_inodes=1000", str(here.state_path)], check=True
            )
            watch = Watch(record_property)

            def controlled():
                if here.process.poll() is not None:
                    here.begin()
                return here.controlled()

            watch.until(controlled, "control")
            assert recorded(here)
        finally:
            here.stop()
            subprocess.run(["umount", "-l", str(here.state_path)], check=True)


@pytest.mark.fault(
    "no file descriptor left",
    "the guard keeps the safe state; control again, newcomers too, when there are some",
)
def test_exhausted_descriptors(here, record_property):
    """Not one can be opened: the limit is below what is open. Nothing seems to be gone for that."""
    pid, newcomer = here.process.pid, here.victim
    newcomer.end()
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (5, before[1]))
    newcomer.begin()
    here.tell(newcomer)
    here.typed.set("cpu.cfs_quota_us", -1)
    until(here.bookings_hold, PATIENCE_S, "the guard's repair")
    assert here.process.poll() is None
    assert here.log.read_text().count("no changes are made until a cycle succeeds") == 1
    assert "Traceback" not in here.log.read_text()

    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    Watch(record_property).until(
        lambda: here.controlled() and len(newcomer.place) == 1, "control of the newcomer"
    )


@pytest.mark.fault("cgroup of a vCPU vanishes", BOOKINGS)
def test_a_vanishing_cgroup(here, record_property):
    """Its thread goes elsewhere first; it comes back later."""
    (here.booked.group.parent / "tasks").write_text(str(here.booked.process.pid))
    here.booked.vcpu.rmdir()
    cycles(here)
    assert here.keeps_booking(here.typed)
    here.typed.set("cpu.cfs_quota_us", -1)
    until(lambda: here.keeps_booking(here.typed), PATIENCE_S, "the neighbour's repair")

    here.booked.vcpu.mkdir()
    (here.booked.vcpu / "tasks").write_text(str(here.booked.process.pid))
    Watch(record_property).until(here.controlled, "control")


def successor(pid: int) -> "subprocess.Popen[bytes] | None":
    """A process with the id of one that has ended; ``None`` if another one was faster."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    found = subprocess.Popen(["sleep", "600"])
    if found.pid == pid:
        return found
    found.kill()
    found.wait()
    return None


@pytest.mark.fault("thread id recycled", "the process that has it now is not written to")
@pytest.mark.parametrize("alive", [True, False], ids=["agent", "guard"])
def test_a_recycled_thread_id(here, record_property, alive):
    """Neither by the agent nor by the guard, which know only the old one's id."""
    if not alive:
        here.process.send_signal(signal.SIGSTOP)
    stand, pid = here.booked, here.booked.process.pid
    stand.end()
    found = None
    for _ in range(200):
        if (found := successor(pid)) is not None:
            break
    if found is None:
        pytest.skip("the id could not be had again")
    try:
        os.sched_setaffinity(pid, {FAST})
        if alive:
            cycles(here, 10)
        else:
            until(lambda: here.victim.place == {FAST, SLOW}, PATIENCE_S, "the guard")
        assert os.sched_getaffinity(pid) == {FAST}
        assert Path(f"/proc/{pid}/cgroup").read_text().count("amp-test") == 0
        assert here.keeps_booking(here.typed)
    finally:
        found.kill()
        found.wait()
        here.process.send_signal(signal.SIGCONT)
    stand.begin()
    here.tell(stand)
    Watch(record_property).until(here.controlled, "control of the one that came back")


@pytest.mark.fault("8,000 idle connections to the exporter", BOOKINGS)
def test_idle_connections(here, record_property):
    """Opened one after the other; the exporter keeps a few of them."""
    address = ("127.0.0.1", int(here.url.split(":")[2].split("/")[0]))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    record_property("times", 8000)
    try:
        with contextlib.ExitStack() as held:
            for number in range(8000):
                if number == 4000:
                    here.booked.set("cpu.cfs_quota_us", -1)
                client = held.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(address)
            until(here.controlled, PATIENCE_S, "the repair")
            assert len(os.listdir(f"/proc/{here.process.pid}/fd")) < 100
        began_s = time.monotonic()
        until(lambda: here.metric("amp_build_info") == 1, PATIENCE_S, "metrics")
        record_property("recovery_s", time.monotonic() - began_s)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def faketime() -> str | None:
    """The library that shifts a process's wall clock, if it is installed."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return str(found[0]) if found else None


@pytest.mark.fault("clock steps by days, in both directions", BOOKINGS)
@pytest.mark.skipif(faketime() is None, reason="faketime is not installed")
def test_clock_steps(tmp_path, record_property):
    """Of the wall clock, as agent and guard see it."""
    offset = tmp_path / "offset"
    offset.write_text("+0")
    command = ["env", f"LD_PRELOAD={faketime()}", f"FAKETIME_TIMESTAMP_FILE={offset}"]
    command += ["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"]
    with host(tmp_path / "host") as here:
        here.start(*command)
        until(here.controlled, PATIENCE_S, "control")
        record_property("times", 3)
        for step in ("+1d", "-1d", "+0"):
            fresh = offset.with_suffix(".new")
            fresh.write_text(step)
            fresh.replace(offset)
            before_s = time.time()
            here.booked.set("cpu.cfs_quota_us", -1)
            watch = Watch(lambda name, value: name == "times" or record_property(name, value))
            watch.until(here.controlled, "the repair")
            cycles(here)
            stamp = here.metric("amp_cycle_last_success_timestamp_seconds")
            assert abs(stamp - before_s - 86_400 * int(step.rstrip("d"))) < 3600
            assert "amp-nova" in page(here)
        assert "Traceback" not in here.log.read_text()
        here.kill()
        until(here.safe, PATIENCE_S, "the safe state")


def page(here: StandHost) -> str:
    """The agent's page, which shows times."""
    import urllib.request

    with urllib.request.urlopen(here.url.removesuffix("metrics"), timeout=20) as reply:
        return reply.read().decode()
