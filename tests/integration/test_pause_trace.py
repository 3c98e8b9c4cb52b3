# SPDX-License-Identifier: Apache-2.0
"""A pause stops all writes: seen in the agent's system calls, on a real guest that books Ips."""

import shutil
import subprocess
import time

import pytest

from tests.support.lab import FAST, cgroup, quota, until

WRITES = "write,pwrite64,writev,sched_setaffinity,setpriority"


class Trace:
    """The system calls of a process that write, with the paths of their files."""

    def __init__(self, pid, path):
        self.path = path
        command = ["strace", "-f", "-y", "-e", f"trace={WRITES}", "-o", str(path), "-p", str(pid)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until(path.exists, 10, "the trace")
        time.sleep(0.5)

    def writes_to(self, *marks):
        """How many calls so far name one of these."""
        lines = self.path.read_text(errors="replace").splitlines()
        return sum(any(mark in line for mark in marks) for line in lines)

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=10)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_pause_stops_all_writes_until_it_ends(guests, agent, tmp_path):
    """Until it ends: neither a cycle nor a tick writes, however wrong the limit is."""
    guest = guests.guest("traced", {"amp:ips": "200M"}, counter=True, cpuset=str(FAST))
    agent.start()
    until(lambda: quota(guest) is not None, 10, "a limit")
    group = cgroup(guest)
    file = group / ("cpu.max" if (group / "cpu.max").exists() else "cpu.cfs_quota_us")
    trace = Trace(agent.process.pid, tmp_path / "trace")
    marks = (f"{group.parent.name}/{group.name}/cpu.", f"sched_setaffinity({guest.task().name},")
    try:
        file.write_text("50000 100000" if file.name == "cpu.max" else "15000")
        until(lambda: trace.writes_to(*marks) > 0, 20, "a write before the pause")

        assert agent.cli("pause", guest.spec.name, "--ttl", "12").returncode == 0
        before = trace.writes_to(*marks)
        # Far from what it books: whoever may write, would.
        file.write_text("max 100000" if file.name == "cpu.max" else "19000")
        agent.next_cycle(3)
        time.sleep(1.0)
        assert trace.writes_to(*marks) == before
        assert "paused" in agent.cli("explain", guest.spec.name).stdout

        until(lambda: trace.writes_to(*marks) > before, 20, "a write after the pause")
    finally:
        trace.stop()
