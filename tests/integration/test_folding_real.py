"""An emulated guest of 4 vCPUs that folds: what the kernel delivers, and what it counts as steal.

vCPUs are busy processes in cgroups, as libvirt makes them. The guest's scheduler and its steal
governor are emulated: a process whose vCPU has no thread to run is stopped. KVM tells guests the
run delay of a vCPU's thread as steal, so the governor reads it here. A reference core is a core of
this machine. ``tests/unit/lab/test_folding.py`` has the same figures from the simulator.
``AMP_NOVA_SECONDS=17 python -m pytest -s tests/integration/test_folding_real.py`` runs all cases.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import pytest

from amp_nova.model.cpu_weight import MOST
from tests.benchmarks.test_kernel import ROOT, group
from tests.support.lab import measured

VCPUS, BOOKED = 4, 0.25
HIGH_RATIO, LOW_RATIO = 0.05, 0.02
FOLDS_S, LASTS_S = 5, int(os.environ.get("AMP_NOVA_SECONDS", "10"))
CASES = [(busy, folds) for busy in (1, 2, 4) for folds in (False, True)]
if "AMP_NOVA_SECONDS" not in os.environ:
    CASES = CASES[-1:]
PCPUS = {0, 1}
UNEVEN_RATIO = 0.7
"""The least of an equal share that a busy vCPU gets of one limit, which the kernel hands out to
pCPUs: another reason not to offer it as a booking."""

pytestmark = [
    pytest.mark.measures,
    pytest.mark.skipif(os.geteuid() != 0, reason="it needs root to make a cgroup"),
    pytest.mark.skipif(not os.sched_getaffinity(0) >= PCPUS, reason="it needs CPUs 0 and 1"),
]


@contextmanager
def emulated(vcpu_cores=None, guest_cores=None):
    """The vCPUs of a guest, stopped, with a limit for each of them or for all together."""
    processes, folders = [], []
    try:
        folders.append(group(ROOT, f"amp-test-{os.getpid()}-folding", MOST))
        folders.append(group(folders[0], "guest", limit=guest_cores))
        for vcpu in range(VCPUS):
            folders.append(group(folders[1], f"vcpu{vcpu}", limit=vcpu_cores))
            process = subprocess.Popen([sys.executable, "-Sc", "while True: pass"])
            processes.append(process)
            process.send_signal(signal.SIGSTOP)
            (folders[-1] / "cgroup.procs").write_text(f"{process.pid}")
            os.sched_setaffinity(process.pid, PCPUS)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for folder in reversed(folders):
            folder.rmdir()


def counted(processes):
    """CPU time and run delay of each vCPU so far, in seconds."""
    texts = [Path(f"/proc/{p.pid}/schedstat").read_text().split() for p in processes]
    return [(int(ran) / 1e9, int(waited) / 1e9) for ran, waited, _ in texts]


def seconds(processes, busy, *, folds):
    """For each second: how many vCPUs the guest used, what each got in cores, and the steal."""
    used, found = VCPUS, []
    before, began = counted(processes), time.monotonic()
    for _ in range(LASTS_S):
        for vcpu, process in enumerate(processes):
            runs = vcpu < min(used, busy)
            process.send_signal(signal.SIGCONT if runs else signal.SIGSTOP)
        time.sleep(max(0.0, began + 1.0 - time.monotonic()))
        after, now = counted(processes), time.monotonic()
        deltas = [(r - p, d - q) for (p, q), (r, d) in zip(before, after, strict=True)]
        steal = sum(waited for _, waited in deltas) / (now - began) / VCPUS
        found.append((used, [ran / (now - began) for ran, _ in deltas], steal))
        if folds and steal > HIGH_RATIO:
            used = max(1, used - 1)
        elif folds and steal <= LOW_RATIO:
            used = min(VCPUS, used + 1)
        before, began = after, now
    return found


def sums(found):
    """What all vCPUs together got in each second, once the guest has folded."""
    return [sum(cores) for _, cores, _ in found[FOLDS_S:]]


def report(title, found):
    steal = fmean(steal for *_, steal in found[FOLDS_S:])
    used = "".join(f"{used}" for used, *_ in found)
    print(f"{title}: {fmean(sums(found)):.3f} cores, steal {steal:.1%}, vCPUs used {used}")


@pytest.mark.parametrize(("busy", "folds"), CASES)
def test_limits_of_each_vcpu(busy, folds):
    """A guest that folds gets one vCPU's booking, whatever it would use; one that does not, all."""

    def check():
        with emulated(vcpu_cores=BOOKED) as processes:
            found = seconds(processes, busy, folds=folds)
        report(f"per vCPU, {busy} busy, folds: {folds}", found)
        expected = BOOKED if folds else BOOKED * busy
        assert fmean(sums(found)) == pytest.approx(expected, rel=0.03)
        steal = (1 - BOOKED) * (1 if folds else busy) / VCPUS
        assert fmean(steal for *_, steal in found[FOLDS_S:]) == pytest.approx(steal, rel=0.05)
        if folds:
            assert [used for used, *_ in found] == [4, 3, 2] + [1] * (LASTS_S - 3)

    measured(check)


@pytest.mark.parametrize(("busy", "folds"), CASES)
def test_one_limit_of_the_guest(busy, folds):
    """One core for all vCPUs reaches a guest that folds too, and no 3 s have more than 101 %."""

    def check():
        with emulated(guest_cores=VCPUS * BOOKED) as processes:
            found = seconds(processes, busy, folds=folds)
        report(f"per instance, {busy} busy, folds: {folds}", found)
        each = [fmean(row[1][vcpu] for row in found[FOLDS_S:]) for vcpu in range(VCPUS)]
        print("  each " + " ".join(f"{cores:.3f}" for cores in each))
        got = sums(found)
        assert fmean(got) >= 0.97 * VCPUS * BOOKED
        windows = [fmean(got[at : at + 3]) for at in range(len(got) - 2)]
        assert max(windows) <= 1.01 * VCPUS * BOOKED
        if not folds:
            assert min(each[:busy]) >= UNEVEN_RATIO * VCPUS * BOOKED / busy

    measured(check)
