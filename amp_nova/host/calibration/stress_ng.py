"""Runs stress-ng, the load generator of a calibration.

Its kernels are well known, compiled by the distribution, and the same on every host that has the
same version. The measure is bogo operations per CPU second of the worker. The kernels need hardly
any set-up, which would make a slow core appear slower than it is, and one operation takes
milliseconds (20 in the memory kernel), so a run of one second is precise enough.
"""

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from amp_nova.exceptions import CalibrationInvalid, CountersUnavailable
from amp_nova.hardware.calibration import Kernel, Run, Sample
from amp_nova.host.counters import perf

KERNELS = (
    # 64-bit additions, multiplications and shifts in registers: the integer units.
    Kernel("integer", True, "--cpu 1 --cpu-method int64"),
    # Double-precision arithmetic and calls to libm: the floating-point units.
    Kernel("float", True, "--cpu 1 --cpu-method double"),
    # Backtracking on the queens problem: data-dependent branches, within a few cache lines.
    # (--branch jumps to random addresses, which no application does.)
    Kernel("branch", True, "--cpu 1 --cpu-method queens"),
    # Transposes 16 MiB into another 16 MiB, one cache line per element: exceeds private caches.
    # (An operation of --stream or --memrate takes seconds; --cache is half system time.)
    Kernel("memory", False, "--matrix 1 --matrix-method trans --matrix-size 2048"),
)
PROGRAM = "stress-ng"
COUNTED = (perf.INSTRUCTIONS, perf.CYCLES)
_GRACE_S = 30.0
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class StressNg:
    """The installed stress-ng."""

    program: str
    version: str
    root: str = "/"

    def run(self, step: Run, kernel: Kernel, pcpus: Sequence[int], run_s: int) -> Sample:
        """Run one step of the schedule for ``run_s`` seconds, at least 1 (0 means forever).

        The first of ``pcpus`` is measured; the others are its SMT siblings. Raises
        ``CalibrationInvalid`` if stress-ng fails.
        """
        with tempfile.TemporaryDirectory(prefix="amp-nova-calibrate-") as folder:
            result = Path(folder, "result.yaml")
            with contextlib.ExitStack() as stack:
                for sibling in pcpus[1:] if step.smt_busy else ():
                    # Outlasts the measurement, and is stopped after it.
                    load = self._command(kernel, sibling, run_s + 2, folder)
                    stack.enter_context(_running(load))
                counters = [self._counter(stack, pcpus[0], what) for what in COUNTED]
                command = self._command(kernel, pcpus[0], run_s, folder)
                command += ["--metrics-brief", "--yaml", str(result)]
                usage_s = _finish(command, run_s + _GRACE_S)
                counted = [counter.read() if counter else None for counter in counters]
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
            **{
                rate: count / usage_s if count and usage_s else None
                for rate, count in zip(("ips", "clock_hz"), counted, strict=True)
            },
        )

    def _counter(
        self, stack: contextlib.ExitStack, pcpu: int, what: perf.Event
    ) -> perf.ChildCounter | None:
        """A counter for the worker; ``None`` if the machine has none."""
        with contextlib.suppress(CountersUnavailable):
            return stack.enter_context(perf.on_pcpu(pcpu, self.root, what))
        return None

    def _command(self, kernel: Kernel, pcpu: int, run_s: int, folder: str) -> list[str]:
        return [
            *(self.program, *kernel.arguments.split()),
            *("--taskset", str(pcpu), "--timeout", f"{run_s}s", "--temp-path", folder),
            # Reproducible random numbers; do not replace a worker that is killed.
            *("--no-rand-seed", "--oomable"),
        ]


def find(program: str = PROGRAM, root: str = "/") -> StressNg:
    """The installed stress-ng; ``CalibrationInvalid`` if it is missing or does not work."""
    path = shutil.which(program)
    if path is None:
        raise CalibrationInvalid(
            f"'{program}' is not installed, and calibrate needs it; install your distribution's"
            " package stress-ng"
        )
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
        output = done.stdout
    except (OSError, subprocess.TimeoutExpired) as exc:
        output = str(exc)
    match = re.search(r"version (\d[\w.]*)", output)
    if match is None:
        raise CalibrationInvalid(
            f"{path} does not print its version ({output.strip()[:80] or 'no output'}); install"
            " your distribution's package stress-ng"
        )
    return StressNg(path, match[1], root)


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a process in its own group, and kill the group at the end."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C must reach amp-nova only, which then stops the load.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        _signal(process, signal.SIGKILL)  # also reaches workers that outlive their parent
        process.wait()
        if process.stderr:
            process.stderr.close()


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _finish(command: list[str], limit_s: float) -> float:
    """Run a command to its end; returns the CPU seconds of its process tree."""
    before_s = _children_s()
    with _running(command) as process:
        try:
            _, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise CalibrationInvalid(
                f"'{' '.join(command[:5])}' did not end within {limit_s:.0f} s; check whether the"
                " machine is overloaded"
            ) from None
    if process.returncode:
        last = (errors.strip().splitlines() or ["no message"])[-1]
        raise CalibrationInvalid(
            f"'{' '.join(command[:5])}' failed with status {process.returncode}: {last}; check"
            " that this user may run on that pCPU"
        )
    return _children_s() - before_s


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _parse(path: Path) -> tuple[float, float, float]:
    """Operations, CPU seconds and wall seconds."""
    try:
        metrics = yaml.safe_load(path.read_text())["metrics"][0]
        ops = float(metrics["bogo-ops"])
        cpu_s = float(metrics["user-time"]) + float(metrics["system-time"])
        wall_s = float(metrics["wall-clock-time"])
    except (OSError, yaml.YAMLError, KeyError, IndexError, TypeError, ValueError) as exc:
        raise CalibrationInvalid(
            f"the result of stress-ng cannot be read ({type(exc).__name__}: {exc}); check that no"
            " other program is called stress-ng"
        ) from exc
    if not (ops > 0 and cpu_s > 0 and wall_s > 0):
        raise CalibrationInvalid(
            f"stress-ng did {ops:g} operations in {cpu_s:g} CPU seconds, too few to measure; raise"
            " --seconds"
        )
    return ops, cpu_s, wall_s
