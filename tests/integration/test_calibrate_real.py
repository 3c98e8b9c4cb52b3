# SPDX-License-Identifier: Apache-2.0
"""``amp-nova calibrate`` with the real kernels on this machine, briefly.

``AMP_NOVA_SECONDS=1 python -m pytest -s tests/integration/test_calibrate_real.py`` also measures in
service until the result is there, all kernels for so long a round: some minutes.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

import pytest

from amp_nova.host.calibration import file
from amp_nova.host.calibration.kernels import IDLE_GROUP
from tests.support.lab import LIMITED, measured, undisturbed, usage
from tests.support.programs import until

pytestmark = [
    pytest.mark.measures,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it needs two pCPUs"),
]
PCPUS = tuple(sorted(os.sched_getaffinity(0))[:2])
SECONDS = os.environ.get("AMP_NOVA_SECONDS")

OTHERS = ",".join(map(str, sorted(os.sched_getaffinity(0))[1:]))
TWO_TYPES = f"core_type = one {PCPUS[0]}\ncore_type = other {OTHERS}\nreference = one\n"
"""Two core types that are equally fast."""


def command(folder, *arguments, topology=TWO_TYPES):
    """The command, in the background."""
    (folder / "amp.conf").write_text(f"[topology]\ncalibration_file = {folder}/c.json\n{topology}")
    program = "from amp_nova.cmd import cli; exit(cli.main())"
    words = ["calibrate", "--config-file", str(folder / "amp.conf"), *arguments]
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def load(target, pcpus=PCPUS):
    """A process on each of these pCPUs that runs ``target`` meanwhile."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=target, args=(p,), daemon=True) for p in pcpus]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def spin(pcpu):
    """Use the pCPU all the time; in a session of its own, for the kernel's automatic groups."""
    os.setsid()
    os.sched_setaffinity(0, {pcpu})
    while True:
        pass


def children(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def test_an_interrupt_leaves_no_process_and_no_file(tmp_path):
    """Ctrl-C ends within seconds, and no load on a sibling runs on."""
    seen = []
    both = f"core_type = all {PCPUS[0]},{PCPUS[1]} 1.0 threads=2\n"
    process = command(tmp_path, "--seconds", "60", topology=both)
    try:
        until(lambda: seen.extend(children(process)) or seen, 60, "its load")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130, err
    assert "is unchanged" in err
    assert not (tmp_path / "c.json").exists()
    assert not [pid for pid in seen if Path(f"/proc/{pid}").exists()]


def cpu_ns(pid):
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


@contextlib.contextmanager
def in_service(folder, *arguments):
    """The command beside guests, once it is in its cgroup."""
    process = command(folder, "--in-service", "50", *arguments)
    try:
        cgroup = Path(f"/proc/{process.pid}/cgroup")
        until(lambda: IDLE_GROUP in cgroup.read_text(), 60, "its cgroup")
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


@pytest.mark.skipif(os.geteuid() != 0, reason="it needs root to make a cgroup")
def test_in_service_it_takes_nothing_from_a_busy_guest(tmp_path):
    """Beside work that always wants the pCPU, it gets the kernel's minimum of the idle class."""
    with load(spin) as guests, in_service(tmp_path) as process:
        measuring = [process.pid, *(guest.pid for guest in guests)]
        before = [cpu_ns(pid) for pid in measuring]
        spun_ns = sum(before[1:]) + 2e9
        until(lambda: sum(map(cpu_ns, measuring[1:])) > spun_ns, 60, "two seconds of work")
        used, *theirs = (cpu_ns(p) - b for p, b in zip(measuring, before, strict=True))

    assert used < 0.02 * sum(theirs)
    assert not list(Path("/sys/fs/cgroup").rglob(IDLE_GROUP))


def test_in_service_bookings_are_kept(guests, agent, tmp_path):
    """Beside bookings of half of each core; two equal cores are measured as equal."""
    fast, slow = (str(cpu) for cpu in PCPUS)
    booked = [
        guests.guest("fast", {"amp:pref_core": "1.0"}, cpuset=fast),
        guests.guest("slow", {"amp:pref_core": "0.5"}, cpuset=slow),
    ]
    agent.start()
    agent.next_cycle(4)

    def kept():
        for windows in usage(booked, windows=4 if SECONDS else 2):
            print("of half a core: " + ", ".join(f"{w.cores / 0.5:.4f}" for w in windows))
            assert fmean(w.cores for w in windows) == pytest.approx(0.5, rel=0.012)

    arguments = ["--seconds", SECONDS] if SECONDS else []
    with undisturbed(booked[0], LIMITED), in_service(tmp_path, *arguments) as process:
        began_s, before = time.monotonic(), cpu_ns(process.pid)
        measured(kept)
        share = (cpu_ns(process.pid) - before) / 1e9 / (time.monotonic() - began_s)
        print(f"calibration used {share:.3f} of a core")
        assert share < 0.52
        until(lambda: cpu_ns(process.pid) > before + 5e8, 60, "half a second of calibration")
        if SECONDS:
            out, err = process.communicate(timeout=1800)
            print(f"{out}\nafter {time.monotonic() - began_s:.0f} s")
            assert process.returncode == 0, err
            coefficients = [t.coefficient for t in file.read(tmp_path / "c.json")[0].core_types]
            assert [c.value for c in coefficients] == pytest.approx([1.0, 1.0], rel=0.03)
            assert all(c.low <= 1.0 <= c.high for c in coefficients)
