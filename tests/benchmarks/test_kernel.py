# SPDX-License-Identifier: Apache-2.0
"""The simulated host's scheduler beside the kernel's own: CPU time of busy vCPUs.

Each guest is a cgroup with a cgroup for each vCPU, as libvirt makes them, and each vCPU a process
that always works. ``AMP_NOVA_SECONDS=10 python -m pytest tests/benchmarks/test_kernel.py`` prints
longer runs.
"""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from amp_nova.model.allocation import Change, Changes, Step
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.cpu_weight import BEST_EFFORT, BOOKED, DEFAULT, MOST
from amp_nova_lab.host import SimHost
from tests.unit.lab.builders import guest, topology

SECONDS = float(os.environ.get("AMP_NOVA_SECONDS", "1"))
V2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
ROOT = Path("/sys/fs/cgroup") if V2 else Path("/sys/fs/cgroup/cpu")
PERIOD_US = 20_000


@dataclass(frozen=True)
class Busy:
    """A guest: its vCPUs, CPU weight, limit of each vCPU in cores, and pCPUs."""

    vcpus: int = 1
    weight: int = DEFAULT
    limit: float | None = None
    pcpus: frozenset[int] = frozenset({0, 1})


ON_0 = frozenset({0})
MIXES = {
    "3 of 1 vCPU on 2 pCPUs": [Busy()] * 3,
    "5 of 1 on 2": [Busy()] * 5,
    "4 and 1 on 2": [Busy(4), Busy()],
    "4 and 1 on 2, weights by vCPU": [Busy(4, 4 * DEFAULT), Busy()],
    "2, 1 and 1 on 2": [Busy(2), Busy(), Busy()],
    "2 and 1 on 1": [Busy(2, pcpus=ON_0), Busy(pcpus=ON_0)],
    "4, 1 and 1 on 1, weights by vCPU": [Busy(4, 4 * DEFAULT, pcpus=ON_0)]
    + [Busy(pcpus=ON_0)] * 2,
    "2 on 2 beside 1 on 1": [Busy(2), Busy(pcpus=ON_0)],
    "0.3 and 0.4 of a core booked, 2 of best effort on 1": [
        Busy(1, BOOKED, 0.3, ON_0), Busy(1, BOOKED, 0.4, ON_0), Busy(2, 2 * BEST_EFFORT, pcpus=ON_0)
    ],
    "2 x 0.45 booked, 2 and 1 of best effort on 2": [
        Busy(2, 2 * BOOKED, 0.45), Busy(2, 2 * BEST_EFFORT), Busy(1, BEST_EFFORT)
    ],
}  # fmt: skip


def group(parent, name, weight=None, limit=None):
    """A cgroup of either version."""
    made = parent / name
    made.mkdir()
    if V2:
        (parent / "cgroup.subtree_control").write_text("+cpu")
    if weight is not None:
        shares = weight if V2 else round(weight * 10.24)
        (made / ("cpu.weight" if V2 else "cpu.shares")).write_text(str(shares))
    if limit is not None:
        quota = round(limit * PERIOD_US)
        files = {"cpu.max": f"{quota} {PERIOD_US}"} if V2 else {
            "cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota)
        }  # fmt: skip
        for file, text in files.items():
            (made / file).write_text(text)
    return made


@contextmanager
def running(guests):
    """Processes of the vCPUs of all guests, which get almost all of the time beside others."""
    processes, folders = [], [group(ROOT, f"amp-nova-kernel-{os.getpid()}", MOST)]
    try:
        for number, of in enumerate(guests):
            parent = group(folders[0], f"guest{number}", of.weight)
            folders.append(parent)
            for vcpu in range(of.vcpus):
                folders.append(group(parent, f"vcpu{vcpu}", limit=of.limit))
                process = subprocess.Popen([sys.executable, "-Sc", "while True: pass"])
                processes.append(process)
                (folders[-1] / "cgroup.procs").write_text(str(process.pid))
                os.sched_setaffinity(process.pid, of.pcpus)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for folder in reversed(folders):
            folder.rmdir()


def in_the_kernel(processes):
    """CPU time over wall time of each process."""

    def cpu_s(process):
        with open(f"/proc/{process.pid}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9

    time.sleep(0.5)  # the load balancer has seen them
    before, began = [cpu_s(p) for p in processes], time.monotonic()
    time.sleep(SECONDS)
    after, took_s = [cpu_s(p) for p in processes], time.monotonic() - began
    return [(b - a) / took_s for a, b in zip(before, after, strict=True)]


def simulated(guests):
    """The same of each vCPU in the simulator."""
    host = SimHost(topology(fast=2, slow=0), [guest(f"{i}", g.vcpus) for i, g in enumerate(guests)])
    steps = {
        (f"{i}", vcpu): (Step(pcpus=of.pcpus), Step(bandwidth=of.limit and Bandwidth(
            round(of.limit * PERIOD_US), PERIOD_US
        )))
        for i, of in enumerate(guests) for vcpu in range(of.vcpus)
    }  # fmt: skip
    changes = tuple(Change(key, each) for key, each in steps.items())
    host.apply(Changes(changes, {f"{i}": of.weight for i, of in enumerate(guests)}))
    host.advance(10.0)
    return [sum(m.run_s) / 10.0 for i in range(len(guests)) for m in host.meters(f"{i}")]


@pytest.mark.skipif(os.cpu_count() < 2 or os.geteuid() != 0, reason="takes root and two CPUs")
def test_the_kernel_shares_as_the_simulator_says(within, capsys):
    """Difference over the share of each vCPU, mean of all mixes."""
    off = []
    for name, guests in MIXES.items():
        with running(guests) as processes:
            found, said = in_the_kernel(processes), simulated(guests)
        off += [abs(f - s) / s for f, s in zip(found, said, strict=True)]
        with capsys.disabled():
            rows = [" ".join(f"{cores:.3f}" for cores in row) for row in (found, said)]
            print(f"\n{name}\n  kernel    {rows[0]}\n  simulator {rows[1]}", end="")
    within("kernel_over_simulator", sum(off) / len(off))
