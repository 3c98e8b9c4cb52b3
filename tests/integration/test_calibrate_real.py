"""``amp-nova calibrate`` with the real stress-ng on this machine, briefly."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from amp_nova.exceptions import CountersUnavailable
from amp_nova.hardware.calibration import Run
from amp_nova.host.calibration import file, stress_ng
from amp_nova.host.counters import perf
from tests.lab import measured
from tests.perf_events import TASK_CLOCK

pytestmark = [
    pytest.mark.skipif(shutil.which("stress-ng") is None, reason="stress-ng is not installed"),
    pytest.mark.measures,
]


def command(folder, *arguments):
    """Run it with one core type that is all online pCPUs; other loads here are overridden."""
    (folder / "amp.conf").write_text(f"[topology]\ncalibration_file = {folder}/c.json\n")
    program = "from amp_nova.cmd import cli; exit(cli.main())"
    return subprocess.Popen(
        [
            *(
                sys.executable,
                "-c",
                program,
                "calibrate",
                "--config-file",
                str(folder / "amp.conf"),
            ),
            *("--repeat", "2", "--force", *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_real_stress_ng_gives_plausible_figures(tmp_path):
    """Every kernel does work on this machine, and its one core type has coefficient 1."""
    process = command(tmp_path)
    out, err = process.communicate(timeout=120)

    assert process.returncode == 0, err
    found = file.read(tmp_path / "c.json")
    assert min(t.coefficient.value for t in found.core_types) == 1, out
    for kernel in found.core_types[0].kernels:
        assert kernel.ops_per_cpu_s.value > 1, kernel
    for sample in found.samples:
        assert 0.2 < sample.cpu_s < 3, sample
    assert (found.nominal_ips_missing is None) == all(t.nominal_ips for t in found.core_types)


def test_an_interrupt_leaves_no_process_and_no_file(tmp_path):
    """Ctrl-C ends within seconds, and no stress-ng of ours runs on."""
    process = command(tmp_path, "--seconds", "60")
    try:
        load = measuring_child(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130, err
    assert "is unchanged" in err
    assert not (tmp_path / "c.json").exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(load, 0)


def measuring_child(process):
    """Wait for the stress-ng that measures; its pid, which is that of its group too."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for _ in range(200):
        for child in children.read_text().split():
            if "--taskset" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
        time.sleep(0.05)
    raise AssertionError("it did not start to measure")


def test_counter_and_cpu_time_are_of_the_same_processes(monkeypatch):
    """A counter of nanoseconds on CPU gives 1e9 a CPU second: Ips are divided by the right time."""
    monkeypatch.setattr(
        perf,
        "on_pcpu",
        lambda *_: perf.ChildCounter(TASK_CLOCK),
    )
    try:
        with perf.on_pcpu(0):
            pass
    except CountersUnavailable as exc:
        pytest.skip(f"no performance counters here: {exc}")
    pcpu = max(os.sched_getaffinity(0))
    step = Run(0, "core", "integer", False)

    def alike():
        found = stress_ng.find().run(step, stress_ng.KERNELS[0], [pcpu], 1)
        # In time that the host of a virtual machine steals, the counter goes on, CPU time does not.
        assert found.ips == pytest.approx(1e9, rel=0.05)

    measured(alike)
