# SPDX-License-Identifier: Apache-2.0
"""The probe beside the kernel's truth: processes with real CPU limits and neighbours, as guests.

The guests of the lab have no Python. A vCPU is a process in a control group, which the kernel
limits and schedules as it does a vCPU's thread. ``AMP_NOVA_SECONDS=60 python -m pytest
tests/integration/test_probe_real.py`` measures as long as a tenant would, in all cases.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from amp_nova.tenant import probe
from tests.support.lab import LIMITED, measured
from tests.support.programs import until

SECONDS = int(os.environ.get("AMP_NOVA_SECONDS", "0"))
V2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
ROOT = Path("/sys/fs/cgroup") if V2 else Path("/sys/fs/cgroup/cpu")
CPU = 1
TOP = ROOT / f"amp-test-{os.getpid()}-probe"
SWITCH_S = 6e-5
"""What the kernel counts as run time in each period although the probe gets none of it: interrupts
and the switch from and to another process, on this machine, which is virtual itself."""


class Limit(NamedTuple):
    """A share of a core in each period, ``None`` without a limit; ``weight`` as in cgroup v2."""

    cores: float | None = None
    period_ms: int = 100
    weight: int = 100


FREE, FIRST = Limit(), 1000
CASES = {
    "limit 0.1 of 100 ms": (Limit(0.1), []),
    "limit 0.1 of 20 ms": (Limit(0.1, 20), []),
    "limit 0.15 of 50 ms": (Limit(0.15, 50), []),
    "limit 0.18 of 20 ms": (Limit(0.18, 20), []),
    "limit 0.22 of 20 ms": (Limit(0.22, 20), []),
    "limit 0.25 of 100 ms": (Limit(0.25), []),
    "limit 0.3 of 50 ms": (Limit(0.3, 50), []),
    "limit 0.5 of 100 ms": (Limit(0.5), []),
    "limit 0.5 of 20 ms": (Limit(0.5, 20), []),
    "limit 0.7 of 100 ms": (Limit(0.7), []),
    "limit 0.85 of 20 ms": (Limit(0.85, 20), []),
    "no limit": (FREE, []),
    "beside 1 busy": (FREE, [FREE]),
    "beside 2 busy": (FREE, [FREE] * 2),
    "beside 3 busy": (FREE, [FREE] * 3),
    "beside 6 busy": (FREE, [FREE] * 6),
    "beside 0.3 of 20 ms": (FREE, [Limit(0.3, 20, FIRST)]),
    "beside 0.5 of 20 ms": (FREE, [Limit(0.5, 20, FIRST)]),
    "beside 0.4 and 0.5 of 20 ms": (FREE, [Limit(0.4, 20, FIRST), Limit(0.5, 20, FIRST)]),
    "limit 0.3 of 100 ms beside 1 busy": (Limit(0.3), [FREE]),
}
SHORT = ("limit 0.5 of 100 ms",)


def group(folder: Path, limit: Limit) -> Path:
    """A control group of either version."""
    folder.mkdir()
    quota, period = round((limit.cores or 0) * limit.period_ms * 1000), limit.period_ms * 1000
    files = {"cpu.weight" if V2 else "cpu.shares": limit.weight if V2 else limit.weight * 10}
    if quota and V2:
        files |= {"cpu.max": f"{quota} {period}"}
    elif quota:
        files |= {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": quota}
    for name, value in files.items():
        (folder / name).write_text(f"{value}")
    return folder


def start(folder: Path, words: Sequence[object]) -> subprocess.Popen[str]:
    """A process on the CPU, in a group."""

    def enter() -> None:
        (folder / "cgroup.procs").write_text(f"{os.getpid()}")
        os.sched_setaffinity(0, {CPU})

    command = [sys.executable, "-I", "-S", *(f"{word}" for word in words)]
    return subprocess.Popen(command, preexec_fn=enter, stdout=subprocess.PIPE, text=True)


@contextmanager
def running(
    own: Limit, others: Sequence[Limit], words: Sequence[object]
) -> Iterator[subprocess.Popen[str]]:
    """The probe beside busy neighbours; everything ends with it."""
    folders, processes = [group(TOP, Limit(weight=100 * LIMITED))], []
    try:
        if V2:
            (TOP / "cgroup.subtree_control").write_text("+cpu")
        folders += [group(TOP / f"{n}", each) for n, each in enumerate([own, *others])]
        processes += [start(each, ["-c", "while True: pass"]) for each in folders[2:]]
        processes.append(start(folders[1], words))
        yield processes[-1]
    finally:
        for folder in reversed(folders):
            for pid in (folder / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
        for process in processes:
            process.wait()
        for folder in reversed(folders):
            until(lambda f=folder: not (f / "cgroup.procs").read_text(), 5, "its processes")
            folder.rmdir()


def seconds_of(pid: int) -> tuple[float, float]:
    """How long the probe's process has run, and waited though its limit let it run."""
    run_s, delay_s = (int(n) / 1e9 for n in Path(f"/proc/{pid}/schedstat").read_text().split()[:2])
    stat = dict(line.split() for line in (TOP / "0/cpu.stat").read_text().splitlines())
    throttled_s = int(stat["throttled_usec"]) / 1e6 if V2 else int(stat["throttled_time"]) / 1e9
    return run_s, delay_s - throttled_s


def shares(process: subprocess.Popen[str], seconds: float) -> tuple[float, float]:
    """These as shares of the time in which it computes, from the kernel."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: children.read_text().split(), 10, "the probe's process")
    pid = int(children.read_text().split()[0])
    time.sleep(1.5)
    before, began_s = seconds_of(pid), time.monotonic()
    time.sleep(0.75 * seconds - 3.0)
    after, lasts_s = seconds_of(pid), time.monotonic() - began_s
    ran, waited = ((b - a) / lasts_s for a, b in zip(before, after, strict=True))
    return ran, waited


@pytest.mark.measures
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0 or (os.cpu_count() or 1) < 2, reason="takes root and 2 CPUs")
@pytest.mark.parametrize("name", CASES if SECONDS else SHORT)
def test_the_probe_says_what_the_kernel_knows(name, capsys):
    """Capacity within 2 %, the period within 5 %, the cause and the verdict."""
    own, others = CASES[name]
    seconds = SECONDS or 15

    def agrees():
        with running(own, others, [probe.__file__, "--json", "--duration", seconds]) as process:
            truth, waited = shares(process, seconds)
            found = json.loads(process.communicate()[0])
        (vcpu,) = found["vcpus"]
        contention = vcpu["lost_to_contention_ratio"]
        keys = ("capacity_cores", "limit_cores", "period_s", "scs_kept", "notes")
        with capsys.disabled():
            print(
                f"\n{name}: kernel {truth:.4f} waits {waited:.4f} probe {contention:.4f}",
                *(f"{k} {vcpu.get(k, found.get(k))}" for k in keys),
            )
        switch_cores = SWITCH_S * 1000 / own.period_ms if own.cores else 0.0
        assert 0.98 * truth - switch_cores <= vcpu["capacity_cores"] <= 1.02 * truth
        assert (vcpu["lost_to_limit_ratio"] >= probe.NAMED_RATIO) == (own.cores is not None)
        if own.cores is None:
            assert contention == pytest.approx(waited, abs=0.02)
        elif others:
            assert contention > 0.05
        else:  # it also waits for whatever else this machine has to do
            assert contention < waited + 0.03
        if own.cores is not None:
            assert 0.98 * own.cores - switch_cores <= vcpu["limit_cores"] <= 1.02 * own.cores
            assert vcpu["period_s"] == pytest.approx(own.period_ms / 1000, rel=0.05)
            assert any("of the server itself limits the probe" in note for note in found["notes"])
        # The neighbours are processes of this machine, too, so there is no verdict on all.
        assert vcpu["scs_kept"] == (truth >= 0.2)

    measured(agrees)
