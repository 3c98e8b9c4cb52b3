# SPDX-License-Identifier: Apache-2.0
"""Observing on real guests: strace sees no write; predictions are compared with the kernel."""

import os
import re
import shutil
import time

import pytest

from tests.support.lab import (
    CYCLE_S,
    FAST,
    LIMITED,
    SLOW,
    Agent,
    affinity,
    both_writers,
    cgroup,
    measured,
    quota,
    undisturbed,
)

HALF = {"amp:pref_core": "0.5"}
PAIRS = [
    ((0.5, 0), (0.15, 2)), ((1.0, 0), (0.1, 4)), ((0.2, 1), (0.25, 0)), ((0.6, 1), (0.3, 2)),
    ((0.3, 4), (0.5, 0)), ((1.4, 0), (0.2, 8)), ((0.8, 2), (0.75, 0)), ((0.1, 8), (0.4, 1)),
    ((0.4, 2), (0.6, 0.5)), ((1.2, 0), (0.05, 20)),
]  # fmt: skip
"""Two guests each, on the fast and the slow core: booked reference cores, and the length of the
naps between their bursts in ms (0: always busy)."""
FULL = "AMP_NOVA_PAIRS" in os.environ
"""Whether to compare all pairs: five minutes."""
TRACED_CYCLES = int(os.environ.get("AMP_NOVA_CYCLES", "12"))
"""Cycles that strace watches: 3600 are an hour."""
WATCHED_S = 6.0
SAME_RATIO, DRIFT_RATIO = 0.05, 0.1
CALLS = "openat,write,pwrite64,writev,pwritev,sched_setaffinity,setpriority,sched_setattr"

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


@pytest.fixture
def watching(tmp_path, writer):
    """An agent that only observes, not started yet."""
    made = Agent(tmp_path / "observe", more=f"writer = {writer}\nmode = observe\n")
    yield made
    made.stop()


def writes(trace, tids):
    """The calls in a trace that write to a cgroup, or set where or when a guest's thread runs."""
    found = []
    for line in trace.read_text(errors="replace").splitlines():
        to_cgroup = re.search(r"write|O_WRONLY", line) and "/cgroup/" in line
        scheduling = re.search(r"(sched_set\w+|setpriority)\((\w+, )?(\d+)", line)
        if to_cgroup or (scheduling and scheduling[3] in tids):
            found.append(line)
    return found


def definition(guest):
    """What libvirt would show of limits and affinities, in the running domain."""
    return guest.domain.XMLDesc(), guest.domain.schedulerParameters(), guest.domain.vcpuPinInfo()


@needs_strace
@both_writers
def test_an_agent_that_observes_writes_nothing(guests, watching, writer, tmp_path):
    """From its first system call on; guests come and go, and somebody else sets limits.

    Calls of libvirt's setters are messages that strace cannot tell from others: so libvirt's own
    account of the domain is compared.
    """
    trace = tmp_path / "trace"
    first = guests.guest("first", HALF, cpuset=str(FAST))
    watching.start("strace", "-D", "-f", "-y", "-e", f"trace={CALLS}", "-o", str(trace))
    second = guests.guest("second", {"amp:pref_core": "0.2"}, vcpus=2)
    tids = {first.task().name, *(second.task(i).name for i in range(2))}
    before = definition(first), definition(second), affinity(first), affinity(second)

    def a_third_of_them():
        for _ in range(TRACED_CYCLES // 3):
            watching.next_cycle(1)

    a_third_of_them()

    file = cgroup(first) / (
        "cpu.max" if (cgroup(first) / "cpu.max").exists() else "cpu.cfs_quota_us"
    )
    file.write_text("50000 100000" if file.name == "cpu.max" else "50000")
    a_third_of_them()
    assert quota(first) == pytest.approx(0.5)
    file.write_text("max 100000" if file.name == "cpu.max" else "-1")
    a_third_of_them()

    after = definition(first), definition(second), affinity(first), affinity(second)
    assert after == before
    assert (quota(first), quota(second)) == (None, None)
    assert watching.metric("amp_writes_total") == 0.0
    guests.destroy(second)
    watching.next_cycle(2)
    assert trace.read_text(errors="replace").count("\n") > 100  # it has seen something
    assert writes(trace, tids) == []


def throttled_s(guest):
    """For how long the kernel has throttled a vCPU so far."""
    text = (cgroup(guest) / "cpu.stat").read_text()
    (name, number) = re.search(r"(throttled_usec|throttled_time) (\d+)", text).groups()
    return int(number) / (1e6 if name == "throttled_usec" else 1e9)


def waited_s(guest):
    """For how long a vCPU has wanted to run and did not so far: throttled, or behind others."""
    return int((guest.task() / "schedstat").read_text().split()[1]) / 1e9


def predicted(agent, guest, bound):
    """For how long enforcement would have throttled a vCPU so far, by the agent's metrics."""
    name = "amp_vcpu_would_throttle_seconds_total"
    return agent.metric(name, domain=guest.spec.name, bound=bound) or 0.0


@pytest.mark.measures
@pytest.mark.parametrize("pair", PAIRS if FULL else PAIRS[:1], ids=str)
def test_predicted_throttling_is_what_the_kernel_then_does(guests, watching, agent, pair):
    """Of a guest that is always busy within 5 %; of one that naps between least and most.

    Each on a core of its own. The kernel does not count the time that a vCPU waits for something
    else on its core as throttled, though it may be short of its limit only because of that.
    """
    both = {}
    for name, cpu, (refcores, nap_ms) in zip(("first", "second"), (FAST, SLOW), pair, strict=True):
        guest = guests.guest(name, {"amp:pref_core": f"{refcores}"}, cpuset=str(cpu))
        guest.nap(int(nap_ms * 1e6))
        both[guest] = DRIFT_RATIO if nap_ms else None
    watching.start()
    watching.next_cycle(3)
    bounds = {}

    def foreseen():
        marks = []
        for cycles in (1, int(WATCHED_S / float(CYCLE_S))):
            watching.next_cycle(cycles)  # which adds to the prediction
            keys = [(guest, bound) for guest in both for bound in ("least", "most")]
            at = {key: predicted(watching, *key) for key in keys}
            marks.append((time.monotonic(), at))
        (began_s, before), (ended_s, after) = marks
        bounds.update({k: (after[k] - before[k]) / (ended_s - began_s) for k in before})
        for guest, coefficient, (refcores, nap_ms) in zip(both, (2.0, 1.0), pair, strict=True):
            assert nap_ms or bounds[guest, "least"] > 0.8 * (1.0 - refcores / coefficient)

    with undisturbed(guest):
        measured(foreseen)
    watching.stop()
    agent.start()
    agent.next_cycle(4)

    def seen():
        before, began_s = {g: (throttled_s(g), waited_s(g)) for g in both}, time.monotonic()
        time.sleep(WATCHED_S)
        lasts_s = time.monotonic() - began_s
        for guest, (throttled, waited) in before.items():
            throttled = (throttled_s(guest) - throttled) / lasts_s
            waited = (waited_s(guest) - waited) / lasts_s
            least, most = bounds[guest, "least"], bounds[guest, "most"]
            print(guest.spec.name, "throttled", throttled, "waited", waited, "within", least, most)
            # How long it wants to run if it naps depends on how fast this machine is at that time.
            drift = both[guest] or SAME_RATIO * least
            assert throttled <= most + drift
            assert waited >= least - drift
            assert throttled >= 0.8 * least - drift

    with undisturbed(guest, LIMITED):
        measured(seen)
