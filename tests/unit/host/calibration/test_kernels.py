# SPDX-License-Identifier: Apache-2.0
"""Slices of the real kernels, and the counters beside them."""

import contextlib
import mmap
import os
import time
from types import SimpleNamespace

import pytest

from amp_nova.exceptions import CalibrationInvalid, CountersUnavailable
from amp_nova.hardware.slices import Run
from amp_nova.host.calibration import kernels
from amp_nova.host.counters import perf
from tests.support.fakehost import put
from tests.support.perf_events import PAGE_FAULTS

TOUCHED_PAGES = 200


@pytest.fixture
def pcpu():
    """A pCPU that this process may use; where it runs is restored."""
    before = os.sched_getaffinity(0)
    yield max(before)
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize("kernel", [k.name for k in kernels.KERNELS])
def test_an_operation_is_short_and_always_the_same(kernel):
    """Long ones would be preempted; the results of two hosts count the same work."""
    kernels.operation(kernel)()  # makes its data
    began_s = time.thread_time()
    results = [kernels.operation(kernel)() for _ in range(5)]

    assert results == [results[0]] * 5
    assert (time.thread_time() - began_s) / 5 < 0.02


def test_a_slice_runs_on_its_pcpu(pcpu):
    """It measures CPU time, which is at most the wall time."""
    found = kernels.measure(Run("core", "float", smt_busy=False), [pcpu])

    assert os.sched_getaffinity(0) == {pcpu}
    assert 0 < found.cpu_s <= found.wall_s


def test_siblings_run_meanwhile_and_end_with_the_slice(pcpu, monkeypatch):
    """Each has a process that is pinned to it."""
    seen, rate = [], kernels.slices.rate

    def during(operations):
        children = kernels.multiprocessing.active_children()
        seen.extend((c.pid, os.sched_getaffinity(c.pid)) for c in children)
        return rate(operations)

    monkeypatch.setattr(kernels.slices, "rate", during)
    kernels.measure(Run("core", "float", smt_busy=True), [pcpu, 0])

    ((pid, affinity),) = seen
    assert affinity == {0}
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_pcpu_that_this_process_may_not_use_is_named():
    """One sentence with the remedy."""
    with pytest.raises(CalibrationInvalid, match="may not run on pCPU 4000"):
        kernels.measure(Run("core", "float", smt_busy=False), [4000])


def test_an_idle_cgroup_beside_those_of_guests(tmp_path):
    """At the end the process is back in the root cgroup."""
    put(tmp_path / "proc/self/mounts", "cgroup2 /tree cgroup2 rw 0 0")
    group = tmp_path / "tree" / kernels.IDLE_GROUP
    (tmp_path / "tree").mkdir()

    with kernels.in_idle_group(str(tmp_path)):
        assert (group / "cpu.idle").read_text() == "1"
        assert (group / "cgroup.procs").read_text() == str(os.getpid())
        assert not (tmp_path / "tree/cgroup.procs").exists()
    assert (tmp_path / "tree/cgroup.procs").read_text() == str(os.getpid())


def test_without_a_cgroup_it_does_not_run_beside_guests(tmp_path):
    """It would compete with guests as an equal."""
    put(tmp_path / "proc/self/mounts", "", end="")

    with (
        pytest.raises(CalibrationInvalid, match=r"cannot give way to guests.*as root"),
        kernels.in_idle_group(str(tmp_path)),
    ):
        raise AssertionError("it runs")


def test_only_what_this_thread_does_in_an_operation_is_counted(pcpu, monkeypatch):
    """Beside a neighbour on the same pCPU. Page faults stand in: one for each page touched."""

    def touch():
        with mmap.mmap(-1, TOUCHED_PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            for start in range(0, len(memory), mmap.PAGESIZE):
                memory[start] = 1

    monkeypatch.setattr(kernels, "operation", lambda _: touch)
    monkeypatch.setattr(perf, "on_pcpu", lambda *_: perf.ThreadCounter(PAGE_FAULTS))
    try:
        with perf.on_pcpu(0):
            pass
    except CountersUnavailable as exc:
        pytest.skip(f"no performance counters here: {exc}")
    found = kernels.measure(Run("core", "integer", smt_busy=True), [pcpu, pcpu])

    # The interpreter may touch a few pages of its own.
    assert TOUCHED_PAGES <= found.instructions_per_op < TOUCHED_PAGES * 1.1


@pytest.mark.parametrize(
    ("kernel", "share", "known"),
    [("memory", 0.9, True), ("memory", 0.2, False), ("float", 0.9, False)],
)
def test_misses_count_where_the_memory_kernel_has_many(pcpu, monkeypatch, kernel, share, known):
    """If most of what it reads is in the cache, it waits for that rather than for memory."""
    misses = 2 * kernels.MISSES_MIN * share * kernels.OPS_PER_SLICE
    counter = contextlib.nullcontext(SimpleNamespace(read=lambda: misses))
    monkeypatch.setattr(perf, "on_pcpu", lambda *_: counter)

    found = kernels.measure(Run("core", kernel, smt_busy=False), [pcpu])

    assert (found.misses_per_op is not None) is known


def test_each_core_type_has_its_own_counter(tmp_path):
    """On a hybrid machine the event is that of the pCPU's core type, elsewhere the plain one."""
    for name, cpus, number in (("cpu_core", "0-3", "4"), ("cpu_atom", "4-7", "10")):
        put(tmp_path / f"sys/bus/event_source/devices/{name}/cpus", cpus)
        put(tmp_path / f"sys/bus/event_source/devices/{name}/type", number)

    assert perf.event_of(2, str(tmp_path)).config == 4 << 32 | 1
    assert perf.event_of(5, str(tmp_path)).config == 10 << 32 | 1
    assert perf.event_of(9, str(tmp_path)).config == 1
