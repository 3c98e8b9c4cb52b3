"""A vCPU's hardware counters: arithmetic on made-up readings, plumbing on real threads."""

import contextlib
import errno
import os
import resource
import threading
import time
from pathlib import Path

import pytest

from amp_nova.exceptions import CountersUnavailable
from amp_nova.host.counters import perf
from amp_nova.host.counters.perf import TYPE_SOFTWARE, Event, Pmu
from amp_nova.host.counters.perf_vcpu import GroupReading, PerfCounter, Tally
from tests.fakehost import descriptors, put

MS = 1_000_000
HYBRID = ("cpu_core", "cpu_atom")
SOFTWARE = (
    Event("task clock", TYPE_SOFTWARE, perf.TASK_CLOCK),
    Event("context switches", TYPE_SOFTWARE, 3),
    Event("page faults", TYPE_SOFTWARE, 2),
)
"""Stand in for instructions, cycles and cache misses where there is no PMU."""


def group(enabled_ms, running_ms, instructions=0, cycles=0, misses=0):
    """One group's reading."""
    return GroupReading(
        round(enabled_ms * MS), round(running_ms * MS), (instructions, cycles, misses)
    )


def test_one_pmu_is_counted_as_it_is():
    """Nothing is scaled, and there is no residency to tell."""
    tally = Tally(["cpu"])
    tally.add([group(10, 10, 1000, 500, 5)])

    counts = tally.add([group(30, 30, 4000, 2500, 9)])

    assert (counts.instructions, counts.cycles, counts.cache_misses) == (4000, 2500, 9)
    assert counts.residency_ns == ()
    assert tally.shared_ratio == 0


def test_a_hybrid_machine_counts_the_sum_and_never_scales():
    """20 ms on a fast core and 80 ms on a slow one: both parts once, and the time on each."""
    tally = Tally(HYBRID)
    tally.add([group(0, 0), group(0, 0)])

    counts = tally.add([group(100, 20, 8000, 4000, 1), group(100, 80, 16000, 16000, 7)])

    assert (counts.instructions, counts.cycles, counts.cache_misses) == (24000, 20000, 8)
    assert counts.residency_ns == (("cpu_core", 20 * MS), ("cpu_atom", 80 * MS))
    assert tally.shared_ratio == 0


def test_two_per_cent_of_a_window_on_the_other_core_type_is_not_blown_up():
    """The published mistake: a 2 % window scaled up by enabled over running."""
    counts = Tally(HYBRID).add([group(1000, 20, 100_000), group(1000, 980, 2_000_000)])

    assert counts.instructions == 2_100_000


def test_time_that_others_had_the_counters_is_made_up_for():
    """Half of the running time was not counted: estimated from the other half, and said."""
    tally = Tally(["cpu"])
    tally.add([group(100, 100, 1000)])

    counts = tally.add([group(200, 150, 1500)])

    assert counts.instructions == 2000
    assert tally.shared_ratio == pytest.approx(0.5)
    assert tally.add([group(300, 250, 2500)]).instructions == 3000
    assert tally.shared_ratio == 0


def test_counters_without_a_turn_say_nothing_until_they_had_one():
    """Work that nobody counted must not look like no work."""
    tally = Tally(["cpu"])
    tally.add([group(100, 100, 1000)])

    assert tally.add([group(200, 100, 1000)]) is None
    assert tally.add([group(300, 200, 2000)]).instructions == 3000


def test_a_vcpu_that_sleeps_has_the_counts_it_had():
    """No time, no change."""
    tally = Tally(["cpu"])
    before = tally.add([group(100, 100, 1000)])

    assert tally.add([group(100, 100, 1000)]) == before


def test_a_counter_that_wraps_goes_on():
    """64 bits are used up, the difference is not."""
    tally = Tally(["cpu"])
    for step in range(1, 4):
        value = (step * ((1 << 63) - 1)) % (1 << 64)
        counts = tally.add([GroupReading(step * MS, step * MS, (value, 0, 0))])
    assert counts.instructions == 3 * ((1 << 63) - 1)


@pytest.mark.parametrize(
    "backwards",
    [group(20, 20, 900), group(20, 9, 1100), group(9, 10, 1100)],
    ids=["value", "running", "enabled"],
)
def test_counters_that_go_backwards_are_no_counters(backwards):
    """They were reset by somebody: what came since is not known."""
    tally = Tally(["cpu"])
    tally.add([group(10, 10, 1000)])

    with pytest.raises(CountersUnavailable, match="backwards"):
        tally.add([backwards])


def test_what_one_pmu_cannot_count_is_not_known():
    """Cache misses of one core type alone are not the vCPU's."""
    fast = GroupReading(10, 5, (100, 50, 3))
    slow = GroupReading(10, 5, (100, 50, None))

    counts = Tally(HYBRID).add([fast, slow])

    assert (counts.instructions, counts.cycles, counts.cache_misses) == (200, 100, None)


class Spinner:
    """A real thread that burns CPU time until told to stop."""

    def __enter__(self):
        self._stop, ready = threading.Event(), threading.Event()

        def spin():
            self.tid = threading.get_native_id()
            ready.set()
            while not self._stop.is_set():
                pass

        self._thread = threading.Thread(target=spin)
        self._thread.start()
        ready.wait(10)
        return self

    def end(self):
        self._stop.set()
        self._thread.join()
        # Python has let go of it; the kernel may need a moment more.
        deadline = time.monotonic() + 10
        while Path(f"/proc/self/task/{self.tid}").exists() and time.monotonic() < deadline:
            time.sleep(0.001)

    def __exit__(self, *_):
        self.end()


def software(tid, **options):
    """A counter of software events, which every kernel has."""
    try:
        return PerfCounter(tid, [Pmu("cpu")], guest_only=False, events=SOFTWARE, **options)
    except CountersUnavailable as exc:
        pytest.skip(f"no performance counters here: {exc}")


def test_a_real_thread_is_counted():
    """Task clock in the place of instructions: a second of burning is a second.

    The thread's own clock is read on both sides of the counter: it runs on between any two calls.
    """
    with Spinner() as spinner:
        counter = software(spinner.tid)
        clock = time.pthread_getcpuclockid(spinner._thread.ident)
        times = [time.clock_gettime_ns(clock)]
        before = counter.read()
        times.append(time.clock_gettime_ns(clock))
        time.sleep(0.3)
        times.append(time.clock_gettime_ns(clock))
        after = counter.read()
        times.append(time.clock_gettime_ns(clock))
    counted = after.instructions - before.instructions
    least, most = times[2] - times[1], times[3] - times[0]
    assert 0.9 * least <= counted <= 1.1 * most
    assert after.cycles > 0  # context switches: it shares the interpreter
    assert counter.note is None
    counter.close()


def test_a_thread_that_ended_keeps_its_counts_and_none_can_be_opened():
    """The last reading stands; a counter for it is refused with a sentence."""
    with Spinner() as spinner:
        counter = software(spinner.tid)
        spinner.end()
        assert counter.read().instructions > 0
        assert counter.read() == counter.read()
        counter.close()
        with pytest.raises(CountersUnavailable, match="thread has gone"):
            PerfCounter(spinner.tid, [Pmu("cpu")], guest_only=False, events=SOFTWARE)


def test_closing_gives_every_descriptor_back():
    """Also when opening fails half way."""
    before = descriptors()
    counter = software(threading.get_native_id())
    assert descriptors() == before + len(SOFTWARE)
    counter.close()

    hybrid = [Pmu("cpu_core", 0), Pmu("cpu_atom", 0xFFFF)]
    mixed = (SOFTWARE[0], Event("unknown", 0xFFFF, 0))
    with pytest.raises(CountersUnavailable):
        PerfCounter(0, hybrid, events=(Event("nothing", 0xFFFF, 0), *mixed), guest_only=False)
    assert descriptors() == before


def test_no_descriptor_left_is_a_sentence_and_heals():
    """At the limit there is a reason and no leak; with room again it counts."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    software(0).close()
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        with pytest.raises(CountersUnavailable, match="LimitNOFILE"):
            PerfCounter(0, [Pmu("cpu")], guest_only=False, events=SOFTWARE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in held:
            os.close(fd)
    software(0).close()


class Kernel:
    """A FAKE ``perf_event_open``: refuses by event, pid or flags, else opens software events."""

    def __init__(self, refuse):
        self.refuse, self.asked = refuse, []

    def __call__(self, event, tid, group, flags, read_format):
        self.asked.append((event, flags))
        code = self.refuse(event, flags)
        if code:
            raise OSError(code, os.strerror(code))
        stand_in = SOFTWARE[{1: 0, 0: 1, 3: 2}[event.config & 0xFFFFFFFF]]
        return perf.open_event(stand_in, tid, group, 0, read_format)


def test_guests_are_counted_without_their_host():
    """Every event of a KVM guest leaves out what the host does for it."""
    kernel = Kernel(lambda *_: 0)
    PerfCounter(0, [Pmu("cpu")], open_event=kernel).close()

    assert len(kernel.asked) == 3
    assert all(flags == perf.EXCLUDE_HOST for _, flags in kernel.asked)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_pmu_that_cannot_tell_guest_from_host_counts_both_and_says_so(code):
    """Better than nothing, as long as it is known."""
    kernel = Kernel(lambda _, flags: code if flags else 0)
    counter = PerfCounter(0, [Pmu("cpu")], open_event=kernel)

    assert "guest from host" in counter.note
    assert counter.read().instructions >= 0
    counter.close()


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EINVAL, errno.ENOSPC, errno.EMFILE])
def test_a_missing_event_is_left_out_and_the_others_stay(code):
    """No event for cache misses: instructions and cycles are counted all the same."""
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
    """Instructions on one core type alone would be taken for a vCPU that hardly works."""
    pmus = [Pmu("cpu_core", 4), Pmu("cpu_atom", 10)]
    kernel = Kernel(lambda e, _: errno.ENOENT if e.config >> 32 == 10 else 0)
    before = descriptors()

    with pytest.raises(CountersUnavailable, match="instructions on cpu_atom"):
        PerfCounter(0, pmus, open_event=kernel)
    assert descriptors() == before


def test_a_group_that_the_kernel_gave_up_is_lost(tmp_path):
    """An event in its error state reads as nothing."""
    counter = software(0)
    empty = tmp_path / "nothing"
    put(empty, "", end="")
    with empty.open() as file:
        os.dup2(file.fileno(), counter._groups[0][0])

    with pytest.raises(CountersUnavailable, match="took the hardware counters away"):
        counter.read()
    counter.close()
