"""Runs stress-ng, the load that a calibration measures with.

An established generator is better than one of ours: its kernels are known, compiled once by the
distribution, and the same on every host that has the same version. What counts is bogo operations
per CPU second of the worker. The kernels do no setting up worth mentioning (a slow core would pay
it twice: by taking longer for it, and by having less of the run left) and end an operation within
milliseconds (the memory kernel within 20), so that runs of a second are fine enough.
"""

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from amp_nova.exceptions import CalibrationInvalid, CountersUnavailable
from amp_nova.hardware.calibration import Kernel, Sample, Step
from amp_nova.host.counters import perf

KERNELS = (
    # 64-bit additions, multiplications, shifts in registers: the integer units.
    Kernel("integer", True, "--cpu 1 --cpu-method int64"),
    # Double-precision arithmetic and calls of libm: the floating point units.
    Kernel("float", True, "--cpu 1 --cpu-method double"),
    # Back-tracking for the queens problem: branches that depend on data, in a few cache lines.
    # (--branch jumps to random places only, which no application does.)
    Kernel("branch", True, "--cpu 1 --cpu-method queens"),
    # Transposes 16 MiB into another 16 MiB, a cache line per element: beyond a core's own caches.
    # (--stream and --memrate take seconds an operation, --cache half its time in the kernel.)
    Kernel("memory", False, "--matrix 1 --matrix-method trans --matrix-size 2048"),
)
PROGRAM = "stress-ng"
MIN_RUN_S = 1
"""stress-ng rounds less down to 0, which means for ever."""
_GRACE_S = 30.0
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class StressNg:
    """The program, found and asked for its version."""

    program: str
    version: str
    root: str = "/"

    def run(self, step: Step, kernel: Kernel, pcpus: Sequence[int], run_s: int) -> Sample:
        """Run one step of the schedule; ``pcpus`` are the one to measure and its siblings."""
        with tempfile.TemporaryDirectory(prefix="amp-nova-calibrate-") as folder:
            result = Path(folder, "result.yaml")
            with contextlib.ExitStack() as stack:
                for sibling in pcpus[1:] if step.smt_busy else ():
                    # Longer than the measurement, to be busy until its end; stopped after it.
                    load = self._command(kernel, sibling, run_s + 2, folder)
                    stack.enter_context(_running(load))
                count = stack.enter_context(_counting(pcpus[0], self.root))
                command = self._command(kernel, pcpus[0], run_s, folder)
                command += ["--metrics-brief", "--yaml", str(result)]
                usage_s = _finish(command, run_s + _GRACE_S)
                counted = count()
            ops, cpu_s, wall_s = _parse(result)
        return Sample(
            round=step.round,
            core_type=step.core_type,
            kernel=step.kernel,
            smt_busy=step.smt_busy,
            pcpu=pcpus[0],
            ops=ops,
            cpu_s=cpu_s,
            wall_s=wall_s,
            ips=counted / usage_s if counted and usage_s else None,
        )

    def _command(self, kernel: Kernel, pcpu: int, run_s: int, folder: str) -> list[str]:
        return [
            *(self.program, *kernel.arguments.split()),
            *("--taskset", str(pcpu), "--timeout", f"{run_s}s", "--temp-path", folder),
            # The same numbers every time; a worker that is killed is not silently replaced.
            *("--no-rand-seed", "--oomable"),
        ]


def find(program: str = PROGRAM, root: str = "/") -> StressNg:
    """The installed stress-ng; ``CalibrationInvalid`` when there is none that works."""
    path = shutil.which(program)
    if path is None:
        raise CalibrationInvalid(
            f"'{program}' is not installed, and calibrate measures with it; install the package"
            " stress-ng of your distribution"
        )
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
        said = done.stdout
    except (OSError, subprocess.TimeoutExpired) as exc:
        said = str(exc)
    match = re.search(r"version (\d[\w.]*)", said)
    if match is None:
        raise CalibrationInvalid(
            f"{path} does not tell its version ({said.strip()[:80] or 'no answer'}); install the"
            " package stress-ng of your distribution"
        )
    return StressNg(path, match[1], root)


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process of its own group, which is gone afterwards, whatever happens."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C is for us: we stop it and leave nothing behind.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _signal(process, signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            pass
        _signal(process, signal.SIGKILL)  # the group: also workers that outlive their parent
        process.wait()
        if process.stderr:
            process.stderr.close()


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _finish(command: list[str], limit_s: float) -> float:
    """Run to the end; CPU seconds of the whole process tree."""
    before_s = _children_s()
    with _running(command) as process:
        try:
            _, said = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise CalibrationInvalid(
                f"'{' '.join(command[:5])}' did not end within {limit_s:.0f} s; is the machine"
                " overloaded?"
            ) from None
    if process.returncode:
        last = (said.strip().splitlines() or ["it said nothing"])[-1]
        raise CalibrationInvalid(
            f"'{' '.join(command[:5])}' failed with status {process.returncode}: {last}; may this"
            " user run on that pCPU?"
        )
    return _children_s() - before_s


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextlib.contextmanager
def _counting(pcpu: int, root: str) -> Iterator[Callable[[], float | None]]:
    """A function that says how many instructions the children have retired, or ``None``."""
    try:
        counter = perf.on_pcpu(pcpu, root)
    except CountersUnavailable:
        yield lambda: None
        return
    with counter:
        before = counter.read() or 0.0

        def count() -> float | None:
            now = counter.read()
            return None if now is None else now - before

        yield count


def _parse(path: Path) -> tuple[float, float, float]:
    """Operations, CPU seconds and wall seconds."""
    try:
        metrics = yaml.safe_load(path.read_text())["metrics"][0]
        ops = float(metrics["bogo-ops"])
        cpu_s = float(metrics["user-time"]) + float(metrics["system-time"])
        wall_s = float(metrics["wall-clock-time"])
    except (OSError, yaml.YAMLError, KeyError, IndexError, TypeError, ValueError) as exc:
        raise CalibrationInvalid(
            f"stress-ng gave no result that can be read ({type(exc).__name__}: {exc}); is another"
            " program called stress-ng?"
        ) from exc
    if not (ops > 0 and cpu_s > 0 and wall_s > 0):
        raise CalibrationInvalid(
            f"stress-ng did {ops:g} operations in {cpu_s:g} CPU seconds, too few to measure; raise"
            " --seconds"
        )
    return ops, cpu_s, wall_s
