"""Running stress-ng, a FAKE here, and its failures."""

import os
import subprocess
import sys

import pytest

from amp_nova.exceptions import CalibrationInvalid, CountersUnavailable
from amp_nova.hardware.calibration import Run
from amp_nova.host.calibration import stress_ng
from amp_nova.host.counters import perf
from tests.calibrations import INTEGER, fake_stress_ng
from tests.perf_events import TASK_CLOCK

STEP = Run(2, "fast", "integer", False)


def generator(tmp_path, **how):
    return stress_ng.find(str(fake_stress_ng(tmp_path / "bin", **how)))


def test_a_run_is_pinned_and_read(tmp_path):
    """The kernel runs on the given pCPU for the given time."""
    found = generator(tmp_path).run(STEP, INTEGER, [0], 2)

    assert found.ops_per_cpu_s == 2000
    assert found.cpu_share_ratio == 1
    assert (found.round, found.core_type, found.kernel, found.pcpu) == (2, "fast", "integer", 0)
    (call,) = (tmp_path / "bin/calls").read_text().splitlines()
    assert call.startswith("--cpu 1 --cpu-method int64 --taskset 0 --timeout 2s ")


def test_busy_siblings_run_the_same_kernel(tmp_path):
    """Each sibling thread has its own pinned load, which outlasts the measurement."""
    busy = Run(0, "fast", "integer", True)
    found = generator(tmp_path, speeds={4: 0.6}).run(busy, INTEGER, [4, 5, 6], 1)

    assert found.smt_busy
    assert found.ops_per_cpu_s == 600
    for sibling in (5, 6):
        assert f"--taskset {sibling} --timeout 3s" in (tmp_path / "bin/calls").read_text()


def test_a_missing_stress_ng_is_one_sentence_with_the_remedy():
    """The message says what to install."""
    with pytest.raises(CalibrationInvalid, match=r"'no-such' is not installed.*install"):
        stress_ng.find("no-such")


def test_another_program_of_that_name_is_refused(tmp_path):
    """A program without a version is not stress-ng."""
    path = tmp_path / "stress-ng"
    path.write_text("#!/bin/sh\necho hello\n")
    path.chmod(0o755)

    with pytest.raises(CalibrationInvalid, match=r"does not print its version \(hello\)"):
        stress_ng.find(str(path))


def test_a_failing_stress_ng_is_quoted(tmp_path):
    """The message has its status and its last line of errors."""
    broken = generator(tmp_path, fails="cannot set affinity")

    with pytest.raises(CalibrationInvalid, match=r"status 2: .*cannot set affinity"):
        broken.run(STEP, INTEGER, [0], 1)


@pytest.mark.parametrize("text", ["metrics: []", "metrics:\n  - bogo-ops: x", ":\n-", "7"])
def test_an_unreadable_result_is_one_sentence(tmp_path, text):
    """A result in another format is refused."""
    with pytest.raises(CalibrationInvalid, match="the result of stress-ng cannot be read"):
        generator(tmp_path, text=text).run(STEP, INTEGER, [0], 1)


def test_a_run_without_an_operation_is_refused(tmp_path):
    """The remedy is a longer run."""
    with pytest.raises(CalibrationInvalid, match="raise --seconds"):
        generator(tmp_path, speeds={0: 0.0}).run(STEP, INTEGER, [0], 1)


def test_a_run_that_does_not_end_is_stopped(tmp_path, monkeypatch):
    """A stress-ng that hangs is killed with its children."""
    path = tmp_path / "stress-ng"
    path.write_text(
        "#!/bin/sh\n"  # a FAKE that ignores SIGTERM
        '[ "$1" = --version ] && { echo "stress-ng, version 1"; exit; }\n'
        f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.05; done\n"
    )
    path.chmod(0o755)
    monkeypatch.setattr(stress_ng, "_GRACE_S", -0.5)
    monkeypatch.setattr(stress_ng, "_STOP_S", 0.2)

    with pytest.raises(CalibrationInvalid, match="did not end within"):
        stress_ng.find(str(path)).run(STEP, INTEGER, [0], 1)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_child_is_counted():
    """The CPU time of a child is counted in the same way as its instructions."""
    program = "import time\nwhile time.process_time() < 0.2: pass"
    try:
        counter = perf.ChildCounter(TASK_CLOCK)
    except CountersUnavailable as exc:
        pytest.skip(f"no performance counters here: {exc}")
    with counter:
        subprocess.run([sys.executable, "-c", program], check=True)
        counted = counter.read()

    assert 0.19e9 < counted < 2e9


def test_an_unknown_event_is_an_error():
    """The message is a sentence."""
    with pytest.raises(CountersUnavailable, match=r"\w+ \w+"):
        perf.ChildCounter(perf.Event("nothing", 0xFFFF, 0))


def test_each_core_type_has_its_own_counter(tmp_path):
    """On a hybrid machine the event is that of the pCPU's core type, elsewhere the plain one."""
    for name, cpus, number in (("cpu_core", "0-3", "4"), ("cpu_atom", "4-7", "10")):
        folder = tmp_path / "sys/bus/event_source/devices" / name
        folder.mkdir(parents=True)
        (folder / "cpus").write_text(cpus + "\n")
        (folder / "type").write_text(number + "\n")

    assert perf.event_of(2, str(tmp_path)).config == 4 << 32 | 1
    assert perf.event_of(5, str(tmp_path)).config == 10 << 32 | 1
    assert perf.event_of(9, str(tmp_path)).config == 1
