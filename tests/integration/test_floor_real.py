# SPDX-License-Identifier: Apache-2.0
"""Nobody starves: what best effort gets beside bookings of all the capacity that is offered."""

import os
import time
from pathlib import Path
from statistics import fmean

import pytest

from tests.support.lab import LIMITED, SLOW, cgroup, measured, undisturbed, until, usage

FLOOR_CORES, WORST_CORES = 0.01, 0.005
BOOKED = 0.475


def idle_s(cpu):
    """Seconds in which a CPU had nothing to run."""
    (line,) = (x for x in Path("/proc/stat").read_text().splitlines() if x.startswith(f"cpu{cpu} "))
    return sum(map(int, line.split()[4:6])) / os.sysconf("SC_CLK_TCK")


def weights(*guests):
    """The CPU weight of each guest, in the unit of cgroup version 1."""
    return [int((cgroup(guest).parent / "cpu.shares").read_text()) for guest in guests]


@pytest.mark.measures
@pytest.mark.parametrize(("vcpus", "writer"), [(1, "libvirt"), (4, "cgroup")])
def test_nobody_starves_beside_bookings_of_all_capacity(guests, agent, vcpus):
    """Every best-effort vCPU gets a hundredth of a core, and the bookings get theirs.

    Less what the core runs besides guests, which comes out of the same reserve.
    """
    specs = {"amp:pref_core": str(BOOKED)}
    booked = [guests.guest(f"booked{i}", specs, cpuset=str(SLOW)) for i in (1, 2)]
    others = [guests.guest("many", cpuset=str(SLOW), vcpus=vcpus)]
    others += [guests.guest("one", cpuset=str(SLOW))] if vcpus == 1 else []
    agent.start()
    wanted = [5120, 5120, *(51 if g.spec.vcpus == 1 else 205 for g in others)]
    until(lambda: weights(*booked, *others) == wanted, 20, "the weights")
    agent.next_cycle()

    def kept():
        idle, began_s = idle_s(SLOW), time.monotonic()
        got = [
            [w.cores for w in of_guest] for of_guest in usage([*booked, *others], 5.0, windows=2)
        ]
        unused = (idle_s(SLOW) - idle) / (time.monotonic() - began_s)
        besides = max(0.0, 1.0 - unused - sum(map(fmean, got)))
        print(f"besides guests {besides:.4f}; ", end="")
        print("of the core: " + ", ".join(f"{fmean(cores):.4f}" for cores in got))
        for cores in got[:2]:
            assert fmean(cores) == pytest.approx(BOOKED, rel=0.05)
        for guest, cores in zip(others, got[2:], strict=True):
            assert fmean(cores) >= FLOOR_CORES * guest.spec.vcpus - besides
            assert min(cores) >= WORST_CORES * guest.spec.vcpus - besides

    with undisturbed(booked[0], LIMITED):
        measured(kept)
    released = agent.cli("release", "--all")
    assert (released.returncode, released.stderr) == (0, "")
    assert set(weights(*booked, *others)) == {1024}
