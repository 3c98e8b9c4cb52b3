# SPDX-License-Identifier: Apache-2.0
"""Two pCPUs that are declared to be threads of one core, with real load on one of them."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

from tests.support.lab import FAST, SLOW, affinity, cgroup, quota, until

TOPOLOGY = f"""[topology]
core_type = all {FAST},{SLOW} 1.0 threads=2 smt=0.6
"""
SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
while True: pass
"""
BUSY_S = 4.0
LOGGED = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
begun = last = time.monotonic()
end, spells = begun + float(sys.argv[2]), []
while last < end:
    now = time.monotonic()
    if now - last > 0.001:
        spells.append((begun, last))
        begun = now
    last = now
print(spells)
"""


@pytest.fixture
def smt_agent(agent):
    """An agent on a core with two threads, each of which costs the other 40 % of its speed."""
    rest = agent.config.read_text().partition("[exporter]")
    kept = next(line for line in rest[0].splitlines() if line.startswith("calibration_file"))
    agent.config.write_text(f"{TOPOLOGY}{kept}\n{rest[1]}{rest[2]}")
    return agent


@pytest.fixture
def process():
    """A busy process on one of the pCPUs, which is no guest."""
    with subprocess.Popen(
        [sys.executable, "-c", SPIN, str(SLOW)], stdout=subprocess.PIPE
    ) as started:
        started.stdout.readline()
        yield started
        started.kill()


def busy_until_now_s(pcpu):
    """For how long a pCPU was not idle, in seconds since boot."""
    line = next(
        x for x in Path("/proc/stat").read_text().splitlines() if x.startswith(f"cpu{pcpu} ")
    )
    idle, iowait = line.split()[4:6]
    return time.monotonic() - (int(idle) + int(iowait)) / os.sysconf("SC_CLK_TCK")


def test_whatever_runs_on_the_sibling_counts(guests, smt_agent, process):
    """A booking gets the more CPU time the longer its sibling is busy, and less as that ends."""
    guest = guests.guest("booked", {"amp:pref_core": "0.4"}, cpuset=str(FAST))

    smt_agent.start()
    assert quota(guest) == pytest.approx(0.4 / 0.6, rel=0.02)  # before anything is known
    smt_agent.next_cycle(3)
    assert quota(guest) == pytest.approx(0.4 / 0.6, rel=0.02)

    process.kill()
    smt_agent.next_cycle(2)
    ratios = []
    for _ in range(5):  # others may use the sibling now, and do not do so evenly
        busy_s, start_s = busy_until_now_s(SLOW), time.monotonic()
        smt_agent.next_cycle(2)
        busy_ratio = (busy_until_now_s(SLOW) - busy_s) / (time.monotonic() - start_s)
        ratios.append(quota(guest) * (1.0 - 0.4 * busy_ratio) / 0.4)
    assert median(ratios) == pytest.approx(1.0, abs=0.05), ratios


@pytest.mark.measures
def test_a_best_effort_guest_on_any_pcpu_counts(guests, smt_agent):
    """Its vCPUs may run anywhere, as Nova leaves them."""
    guests.guest("anywhere", vcpus=2)
    guest = guests.guest("booked", {"amp:pref_core": "0.4"}, cpuset=str(FAST))
    smt_agent.start()
    smt_agent.next_cycle(3)

    assert quota(guest) == pytest.approx(0.4 / 0.6, rel=0.05)
    assert affinity(guest) == {FAST}
    delivered = "amp_vcpu_delivered_ratio", guest.spec.name
    until(
        lambda: 0.9 < (smt_agent.metric(delivered[0], domain=delivered[1]) or 0.0) < 1.1,
        20,
        "a window of what it booked",
    )


def spells(limits):
    """When a busy process on each of the two pCPUs ran, if it has this limit."""
    started, groups = [], []
    for cpu, (quota_us, period_us) in zip((FAST, SLOW), limits, strict=True):
        group = Path(f"/sys/fs/cgroup/cpu/amp-test-{os.getpid()}-{cpu}")
        group.mkdir()
        groups.append(group)
        (group / "cpu.shares").write_text("100000")  # whatever else runs here
        (group / "cpu.cfs_period_us").write_text(f"{period_us}")
        (group / "cpu.cfs_quota_us").write_text(f"{quota_us}")
        words = [sys.executable, "-c", LOGGED, str(cpu), str(BUSY_S)]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        (group / "cgroup.procs").write_text(f"{started[-1].pid}")
    found = [ast.literal_eval(process.communicate()[0]) for process in started]
    for group in groups:
        group.rmdir()
    return found


def met(one, other):
    """The part of the time in which one ran in which the other one ran, too."""
    from_s, to_s = max(one[0][0], other[0][0]), min(one[-1][1], other[-1][1])
    one, other = (
        [(max(a, from_s), min(b, to_s)) for a, b in of if b > from_s and a < to_s]
        for of in (one, other)
    )
    both_s = sum(max(0.0, min(b, d) - max(a, c)) for a, b in one for c, d in other)
    return both_s / sum(b - a for a, b in one)


@pytest.mark.measures
def test_siblings_are_not_throttled_in_step(guests, smt_agent):
    """Equal bookings meet about half of the time, as accounting assumes, not always or never."""
    booked = [guests.guest(f"booked{i}", {"amp:pref_core": "0.5"}) for i in range(2)]
    smt_agent.start()
    smt_agent.next_cycle(2)
    assert {frozenset(affinity(guest)) for guest in booked} == {
        frozenset({p}) for p in (FAST, SLOW)
    }
    periods = [int((cgroup(g) / "cpu.cfs_period_us").read_text()) for g in booked]
    guests.clear()

    staggered = [met(*spells([(p // 2, p) for p in periods])) for _ in range(2)]

    print(f"met with periods of {periods} us: {staggered}")
    assert staggered == [pytest.approx(0.5, abs=0.08)] * 2
