# SPDX-License-Identifier: Apache-2.0
"""A real guest that sends frames through a real tap: its I/O threads go to slow cores and back."""

import os
import time
from pathlib import Path

import pytest

from tests.support.lab import FAST, SLOW, Agent, affinity, until

BOTH, ONLY_SLOW = {FAST, SLOW}, {SLOW}
CONF = "io_work = slow\nio_line_rate_mbps = {}\n"
LINE_MBPS = 100
TURNS = 20_000
"""Work of the vCPU between batches: several times what fills the line, on any core."""


def io_affinities(guest):
    """Where all threads of the guest's process but its vCPUs may run, by the kernel."""
    found = {}
    for task in Path(f"/proc/{guest.pid}/task").iterdir():
        comm = (task / "comm").read_text().strip()
        if not comm.startswith("CPU "):
            found[f"{comm} {task.name}"] = os.sched_getaffinity(int(task.name))
    return found


def all_on(guest, pcpus):
    """Whether all its I/O threads may run on these pCPUs and no other."""
    return set(map(frozenset, io_affinities(guest).values())) == {frozenset(pcpus)}


def frames_flow(guest):
    """Wait for frames that the guest's device takes: beside other tests, it may be a second."""
    before = guest.rounds()[0]
    until(lambda: guest.rounds()[0] > before, 20, "frames")


@pytest.fixture
def sender(guests):
    """A guest that fills its line."""
    guest = guests.sender("sender", pins={0: str(FAST)}, iothreads=1)
    guest.pause(TURNS)
    return guest


@pytest.fixture
def slow_agent(lab, tmp_path):
    """An agent that moves I/O work."""
    made = Agent(tmp_path / "agent", more=CONF.format(LINE_MBPS))
    yield made
    made.stop()


def test_io_threads_move_to_slow_cores_while_frames_flow_and_back_when_they_stop(
    sender, slow_agent
):
    """Combined Usage rises above 100 %, the threads move, frames still flow; then the reverse."""
    guest = sender
    assert all_on(guest, BOTH)
    frames_flow(guest)
    definition = guest.domain.XMLDesc(0)
    slow_agent.start()

    until(lambda: all_on(guest, ONLY_SLOW), 20, "the move to slow cores")

    name = guest.spec.name
    assert slow_agent.metric("amp_instance_combined_usage_ratio", domain=name) > 1.0
    frames_flow(guest)
    # Nothing of it is in the definition, hence nothing travels; and the vCPU is as it was.
    assert guest.domain.XMLDesc(0) == definition
    assert affinity(guest) == {FAST}
    assert "Combined Usage" in slow_agent.cli("explain", name).stdout

    # Throughput after over before: a move that costs too much is reversed.
    effect = "amp_instance_io_effect_ratio"
    until(lambda: slow_agent.metric(effect, domain=name) is not None, 20, "the effect")
    kept = slow_agent.metric(effect, domain=name) >= 0.75
    until(lambda: all_on(guest, ONLY_SLOW if kept else BOTH), 5, "what follows from the effect")

    guest.pause(2**31)  # hardly any frames
    until(lambda: all_on(guest, BOTH), 20, "the move back")


def test_pause_release_and_a_pin_in_the_definition(sender, slow_agent):
    """Paused and pinned threads are left alone; release restores, until the instance is resumed."""
    guest, name = sender, sender.spec.name
    slow_agent.start()
    until(lambda: all_on(guest, ONLY_SLOW), 20, "the move to slow cores")

    assert slow_agent.cli("release", "--all").returncode == 0
    assert all_on(guest, BOTH)
    time.sleep(4)
    assert all_on(guest, BOTH)

    assert slow_agent.cli("resume", name).returncode == 0
    until(lambda: all_on(guest, ONLY_SLOW), 10, "the move back to slow cores")
    guest.domain.pinEmulator((True, False), 0)
    time.sleep(4)
    by_name = io_affinities(guest)
    assert {FAST} in by_name.values()  # the emulator: pinned by the definition, and kept there
    assert "Something else" not in slow_agent.cli("explain", name).stdout
