# SPDX-License-Identifier: Apache-2.0
"""The kernels of a calibration, slices of them on a pCPU, and rounds of such slices.

The kernels are calls of functions that CPython has in C, on data that is the same everywhere: there
is nothing to install or to compile, and two hosts with the same version of Python run the same
code. An operation takes about half a millisecond, so that on a busy pCPU some are not preempted.
"""

import contextlib
import functools
import math
import multiprocessing
import os
import platform
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amp_nova.exceptions import CalibrationInvalid, CountersUnavailable
from amp_nova.hardware import slices
from amp_nova.hardware.calibration import Kernel
from amp_nova.hardware.slices import Run, Slice, SpeedSample
from amp_nova.host.counters import perf, perf_vcpu
from amp_nova.kernel import cgroups

INTEGER = Kernel("integer", True, "pow() of 512-bit integers modulo another")
FLOAT = Kernel("float", True, "math.hypot() of 1000 floats, 100 times")
BRANCH = Kernel("branch", True, "sorted() of 4000 random integers")
MEMORY = Kernel("memory", False, "every fourth cache line of 16 MiB, a page apart")
KERNELS = (INTEGER, FLOAT, BRANCH, MEMORY)
VERSION = platform.python_version()
"""Whose code the kernels are: the same work at another version may be other instructions."""
OPS_PER_SLICE = 30
IDLE_GROUP = "amp-nova-calibrate"
MISSES_MIN = (16 << 20) // 256 // 2
"""Misses of an operation of the memory kernel that tell what one costs: half of what it reads."""

Operation = Callable[[], object]


@functools.cache
def operation(kernel: str) -> Operation:
    """One operation of a kernel."""
    numbers = random.Random(1)  # the same data on every host
    if kernel == INTEGER.name:
        number, power, modulus = (numbers.getrandbits(512) | 1 for _ in range(3))
        return lambda: pow(number, power, modulus)
    if kernel == FLOAT.name:
        floats = [numbers.random() for _ in range(1000)]
        return lambda: [math.hypot(*floats) for _ in range(100)]
    if kernel == BRANCH.name:
        integers = [numbers.getrandbits(30) for _ in range(4000)]
        return lambda: sorted(integers)
    # What is read in turn is a page and a line apart, which defeats prefetching, and the array is
    # larger than private caches.
    row, memory = 65 * 64, bytes(range(256)) * (1 << 16)
    return lambda: [memory[start::row] for start in range(0, row, 256)]


def measure(run: Run, pcpus: Sequence[int], root: str = "/") -> Slice:
    """A slice on the first of ``pcpus``; the others are its SMT siblings.

    Raises ``CalibrationInvalid`` if this process may not run there.
    """
    operate = operation(run.kernel)
    with contextlib.ExitStack() as stack:
        if run.smt_busy:
            stack.enter_context(_busy(operate, pcpus[1:]))
        began_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        try:
            os.sched_setaffinity(0, {pcpus[0]})
        except OSError as exc:
            raise CalibrationInvalid(
                f"this process may not run on pCPU {pcpus[0]} ({exc.strerror}): start it outside"
                " of containers and of CPU sets"
            ) from exc
        operate()  # fills the caches, and raises the clock
        counters = [_counter(stack, pcpus[0], what, root) for what in perf_vcpu.EVENTS]
        operations = []
        for _ in range(OPS_PER_SLICE):
            at_ns, used_ns = time.perf_counter_ns(), time.thread_time_ns()
            operate()
            used_ns = time.thread_time_ns() - used_ns
            operations.append((time.perf_counter_ns() - at_ns, used_ns))
        counts = [counter.read() if counter else None for counter in counters]
        instructions, cycles, misses = (n / OPS_PER_SLICE if n else None for n in counts)
        if run.kernel != MEMORY.name or (misses or 0.0) < MISSES_MIN:
            misses = None
        return Slice(
            slices.rate(operations),
            cpu_s=(time.thread_time_ns() - cpu_ns) / 1e9,
            wall_s=(time.perf_counter_ns() - began_ns) / 1e9,
            instructions_per_op=instructions,
            cycles_per_op=cycles,
            misses_per_op=misses,
        )


def _counter(
    stack: contextlib.ExitStack, pcpu: int, what: perf.Event, root: str
) -> perf.ThreadCounter | None:
    """A counter of this thread; ``None`` if the machine has none."""
    with contextlib.suppress(CountersUnavailable):
        return stack.enter_context(perf.on_pcpu(pcpu, root, what))
    return None


@contextlib.contextmanager
def _busy(operate: Operation, pcpus: Sequence[int]) -> Iterator[None]:
    """Run a kernel on other pCPUs meanwhile, at the priority of this process."""
    context = multiprocessing.get_context("fork")
    reader, writer = os.pipe()
    how = ((operate, pcpu, writer, os.getpid()) for pcpu in pcpus)
    processes = [context.Process(target=_spin, args=each) for each in how]
    try:
        # Ctrl-C is this process's: its children inherit the blocked signal.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for process in processes:
                process.start()
        finally:
            os.close(writer)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for _ in pcpus:
            if not os.read(reader, 1):
                raise CalibrationInvalid(
                    f"the load on sibling pCPUs {', '.join(map(str, pcpus))} did not start: run"
                    " amp-nova outside of containers and of CPU sets"
                )
        yield
    finally:
        os.close(reader)
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _spin(operate: Operation, pcpu: int, ready: int, parent: int) -> None:
    """Run a kernel on a pCPU until the parent kills this process, or ends."""
    os.sched_setaffinity(0, {pcpu})
    os.write(ready, b".")
    os.close(ready)
    while os.getppid() == parent:
        operate()


@dataclass(frozen=True, slots=True)
class Rounds:
    """How to measure a round."""

    cores: Mapping[str, Sequence[int]]
    """The pCPU to measure of each core type, followed by its SMT siblings."""
    kernels: Sequence[str]
    seconds: float
    """Time for each kernel on each core type: wall time or, beside other work, CPU time."""
    progress: Callable[[int, float], None]
    """Called with the number of the round and the seconds that it still takes."""
    share_ratio: float | None = None
    """The share of one pCPU to use at most beside other work, ``None`` without other work."""
    shuffled: random.Random = field(default_factory=random.Random)

    def measure(self, number: int) -> list[SpeedSample]:
        """The samples of a round."""
        types = {name: len(core) > 1 for name, core in self.cores.items()}
        taken: dict[Run, list[Slice]] = {}
        left_s = self.seconds * len(slices.runs(types, self.kernels, self.shuffled))
        # On a pCPU that others use all the time, a slice may take a second.
        while left_s > 0 or any(len(of) < 2 * slices.MIN_SLICES for of in taken.values()):
            for run in slices.runs(types, self.kernels, self.shuffled):
                measurement = measure(run, self.cores[run.core_type])
                taken.setdefault(run, []).append(measurement)
                left_s -= measurement.wall_s if self.share_ratio is None else measurement.cpu_s
                if self.share_ratio:
                    time.sleep(measurement.cpu_s / self.share_ratio - measurement.cpu_s)
            self.progress(number, max(0.0, left_s) / (self.share_ratio or 1.0))
        samples = (
            slices.fastest(number, run, self.cores[run.core_type][0], of)
            for run, of in taken.items()
        )
        return [sample for sample in samples if sample]


@contextlib.contextmanager
def in_idle_group(root: str = "/") -> Iterator[None]:
    """Run this process and its children only while nothing else wants the pCPU.

    They go to a cgroup of the idle class beside those of all guests: a priority would count only
    among the processes of the session. Raises ``CalibrationInvalid`` if that is not possible.
    """
    mounted = cgroups.mounts(Path(root))
    mount = mounted.get("cpu") or mounted.get("")
    tree = mount.path if mount else Path(root, "sys/fs/cgroup")
    group = tree / IDLE_GROUP
    try:
        try:
            group.mkdir(exist_ok=True)
            (group / "cpu.idle").write_text("1")
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as exc:
            raise CalibrationInvalid(
                f"this process cannot give way to guests ({exc}): run 'amp-nova calibrate"
                " --in-service' as root, with Linux 5.15 or newer and the cgroup controller cpu"
            ) from exc
        yield
    finally:
        with contextlib.suppress(OSError):
            (tree / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()
