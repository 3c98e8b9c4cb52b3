# SPDX-License-Identifier: Apache-2.0
"""A vCPU's hardware counters: arithmetic on invented readings, system calls on real threads."""

import contextlib
import errno
import os
import resource
import threading
import time

import pytest

from amp_nova.exceptions import CountersUnavailable
from amp_nova.host.counters import perf
from amp_nova.host.counters.perf import Pmu
from amp_nova.host.counters.perf_vcpu import GroupReading, PerfCounter, Tally
from amp_nova.model.observation import Counts
from tests.support.fakehost import descriptors, put
from tests.support.perf_events import STAND_INS, open_software

MS = 1_000_000


def group(enabled_ms, running_ms, instructions=0, cycles=0, misses=0):
    """One group's reading."""
    return GroupReading(
        round(enabled_ms * MS), round(running_ms * MS), (instructions, cycles, misses)
    )


HALF_COUNTED = [[group(100, 100, 1000)], [group(200, 150, 1500)]]
TALLIED = {
    "one PMU is not scaled": (
        [[group(10, 10, 1000, 500, 5)], [group(30, 30, 4000, 2500, 9)]],
        (Counts(4000, 2500, 9, 30 * MS), 0.0),
    ),
    "20 ms on a fast core and 80 ms on a slow one count once": (
        [
            [group(0, 0), group(0, 0)],
            [group(100, 20, 8000, 4000, 1), group(100, 80, 16000, 16000, 7)],
        ],
        (Counts(24000, 20000, 8, 100 * MS), 0.0),
    ),
    "cache misses on one core type alone are not those of the vCPU": (
        [[GroupReading(MS, MS, (100, 50, 3)), GroupReading(MS, 0, (100, 50, None))]],
        (Counts(200, 100, None, MS), 0.0),
    ),
    "others used the counters half of the time": (
        HALF_COUNTED,
        (Counts(2000, 0, 0, 200 * MS), 0.5),
    ),
    "and then they did not": (
        [*HALF_COUNTED, [group(300, 250, 2500)]],
        (Counts(3000, 0, 0, 300 * MS), 0.0),
    ),
    "uncounted work is not no work": (
        [[group(100, 100, 1000)], [group(200, 100, 1000)]],
        (None, 1.0),
    ),
    "it is counted later": (
        [[group(100, 100, 1000)], [group(200, 100, 1000)], [group(300, 200, 2000)]],
        (Counts(3000, 0, 0, 300 * MS), 0.5),
    ),
    "an idle vCPU": (
        [[group(100, 100, 1000)], [group(100, 100, 1000)]],
        (Counts(1000, 0, 0, 100 * MS), 0.0),
    ),
}


@pytest.mark.parametrize(("readings", "expected"), TALLIED.values(), ids=TALLIED)
def test_readings_of_groups_add_up(readings, expected):
    """Each with the share of the latest running time in which others used the counters."""
    tally = Tally(len(readings[0]))

    *_, counts = (tally.add(each) for each in readings)

    assert (counts, tally.shared_ratio) == expected


@pytest.mark.parametrize(
    "backwards",
    [group(20, 20, 900), group(20, 9, 1100), group(9, 10, 1100)],
    ids=["value", "running", "enabled"],
)
def test_counters_that_go_backwards_are_an_error(backwards):
    """Something reset them: the increase is unknown."""
    tally = Tally(1)
    tally.add([group(10, 10, 1000)])

    with pytest.raises(CountersUnavailable, match="backwards"):
        tally.add([backwards])


def software(tid):
    """A counter of software events, which every kernel has."""
    try:
        return PerfCounter(tid, [Pmu("cpu")], open_event=open_software)
    except CountersUnavailable as exc:
        pytest.skip(f"no performance counters here: {exc}")


def test_a_real_thread_is_counted():
    """With the task clock in place of instructions: CPU time is what is counted."""
    descriptors_before = descriptors()
    counter = software(threading.get_native_id())
    assert descriptors() == descriptors_before + len(STAND_INS)  # one for each event
    began_ns, ran_ns = time.monotonic_ns(), time.thread_time_ns()
    before = counter.read()
    while time.thread_time_ns() < ran_ns + 50_000_000:
        pass
    after = counter.read()
    wall_ns = time.monotonic_ns() - began_ns

    assert 0.9 * 50_000_000 <= after.instructions - before.instructions <= wall_ns
    assert counter.note is None
    counter.close()
    assert descriptors() == descriptors_before


@pytest.mark.fault("PMU without descriptors", "counting resumes")
def test_counting_resumes_after_a_shortage_of_descriptors():
    """At the limit there is a reason and no leak; below it counting works again."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    software(0).close()
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        with pytest.raises(CountersUnavailable, match="LimitNOFILE"):
            PerfCounter(0, [Pmu("cpu")], open_event=open_software)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)
    software(0).close()


class Kernel:
    """A FAKE ``perf_event_open``: refuses by event or flags, or opens software events."""

    def __init__(self, refuse):
        self.refuse, self.events = refuse, []

    def __call__(self, event, tid, group, flags, read_format):
        self.events.append((event, flags))
        code = self.refuse(event, flags)
        if code:
            raise OSError(code, os.strerror(code))
        return open_software(event, tid, group, flags, read_format)


def test_guests_are_counted_without_their_host():
    """Every event of a KVM guest excludes the host's work for it."""
    kernel = Kernel(lambda *_: 0)
    PerfCounter(0, [Pmu("cpu")], open_event=kernel).close()

    assert len(kernel.events) == 3
    assert all(flags == perf.EXCLUDE_HOST for _, flags in kernel.events)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_pmu_that_cannot_tell_guest_from_host_counts_both(code):
    """The note says so."""
    kernel = Kernel(lambda _, flags: code if flags else 0)
    counter = PerfCounter(0, [Pmu("cpu")], open_event=kernel)

    assert "guest from host" in counter.note
    assert counter.read().instructions >= 0
    counter.close()


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EINVAL, errno.ENOSPC, errno.EMFILE])
def test_a_missing_event_is_omitted(code):
    """Without cache misses, instructions and cycles are still counted."""
    counter = PerfCounter(
        0, [Pmu("cpu")], open_event=Kernel(lambda e, _: code if e.name == "cache misses" else 0)
    )

    counts = counter.read()

    assert counts.cache_misses is None
    assert counts.instructions > 0
    assert counts.cycles is not None
    assert counter.note.startswith("no cache misses: ")
    counter.close()


def test_a_core_type_without_counters_means_no_counter(tmp_path):
    """With instructions of one core type alone, a busy vCPU could seem to be idle."""
    pmus = [Pmu("cpu_core", 4), Pmu("cpu_atom", 10)]
    kernel = Kernel(lambda e, _: errno.ENOENT if e.config >> 32 == 10 else 0)
    before = descriptors()

    with pytest.raises(CountersUnavailable, match="instructions on cpu_atom"):
        PerfCounter(0, pmus, open_event=kernel)
    assert descriptors() == before


def test_a_group_in_its_error_state_is_an_error(tmp_path):
    """It reads as nothing."""
    counter = software(0)
    empty = tmp_path / "nothing"
    put(empty, "", end="")
    with empty.open() as file:
        os.dup2(file.fileno(), counter._groups[0][0])

    with pytest.raises(CountersUnavailable, match="took the hardware counters away"):
        counter.read()
    counter.close()
