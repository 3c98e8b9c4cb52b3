"""What guests without a booking get beside bookings that take all that is offered; prints.

One CPU, and guests that always work. The limits of the bookings add up to 0.95 of it. The rows
differ in what keeps best effort behind them: nothing; the kernel's idle class (``cpu.idle``), which
the agent used before; CPU weights as the agent sets them. The monitor command ``query-status``
needs QEMU's main thread, which has the weight or class of its guest.
"""

import random
import time

import pytest

from amp_nova.model import cpu_weight
from tests.benchmarks.scale import scaled
from tests.lab import SLOW, cgroup, opened, undisturbed

SECONDS = scaled(20.0, 1.0)
PERIOD_US = 20_000
BOOKED = 0.95
QUERY = '{"execute": "query-status"}'


def group(guest):
    """The domain's CPU cgroup, and its file of weights, with the unit of these."""
    found = cgroup(guest).parent
    found = found.parent if found.name == "libvirt" else found
    if (found / "cpu.weight").exists():
        return found, "cpu.weight", 100
    return found, "cpu.shares", 1024


def limit(guest, cores):
    """Limit every vCPU of a guest."""
    for index in range(guest.spec.vcpus):
        path = cgroup(guest, index)
        if (path / "cpu.max").exists():
            (path / "cpu.max").write_text(f"{round(cores * PERIOD_US)} {PERIOD_US}")
        else:
            (path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (path / "cpu.cfs_quota_us").write_text(str(round(cores * PERIOD_US)))


def keep_back(kind, booked, free):
    """Set weights or the idle class."""
    for guests, weight in ((booked, cpu_weight.booked), (free, cpu_weight.best_effort)):
        for guest in guests:
            path, name, unit = group(guest)
            (path / "cpu.idle").write_text(str(int(kind == "idle class" and guest in free)))
            if kind != "idle class" or guest in booked:
                wanted = weight(guest.spec.vcpus) if kind == "weights" else cpu_weight.DEFAULT
                (path / name).write_text(str(round(wanted * unit / 100)))


def measured(guests, seconds):
    """CPU share of every guest, and how long QMP took to answer, in ms."""
    from libvirt_qemu import qemuMonitorCommand

    before, began, waits = [sum(g.cpu_ns()) for g in guests], time.monotonic(), {}
    while time.monotonic() < began + seconds:
        guest = random.choice(guests)
        asked = time.perf_counter()
        qemuMonitorCommand(guest.domain, QUERY, 0)
        waits.setdefault(guest, []).append(1e3 * (time.perf_counter() - asked))
        time.sleep(0.02 * random.random())
    took_s = time.monotonic() - began
    shares = [(sum(g.cpu_ns()) - was) / 1e9 / took_s for g, was in zip(guests, before, strict=True)]
    return dict(zip(guests, shares, strict=True)), waits


def shown(waits):
    """Median, 99th percentile and maximum."""
    waits = sorted(waits) or [0.0]
    return "".join(f"{waits[int(q * (len(waits) - 1))]:8.1f}" for q in (0.5, 0.99, 1.0))


@pytest.mark.parametrize(
    ("bookings", "others", "vcpus"), [(1, 1, 1), (2, 2, 1), (4, 4, 1), (1, 1, 4), (1, 1, 16)]
)
def test_floor(tmp_path_factory, bookings, others, vcpus):
    """Best effort for each vCPU, delivered over booked, and how long QEMU takes to answer."""
    share = BOOKED / bookings / vcpus
    with opened(tmp_path_factory.mktemp("lab")) as lab:
        more = {"vcpus": vcpus, "cpuset": str(SLOW)}
        booked = [lab.guest(f"booked{i}", **more) for i in range(bookings)]
        free = [lab.guest(f"free{i}", **more) for i in range(others)]
        for guest in booked:
            limit(guest, share)
        print(
            f"\none CPU, {bookings} + {others} guests of {vcpus} vCPUs, {share:.4f} booked for each"
        )
        print(" " * 12 + "best effort   delivered   ms to answer: median, 99th, max   of a booking")
        with undisturbed(booked[0]):
            for kind in ("nothing", "idle class", "weights"):
                keep_back(kind, booked, free)
                time.sleep(1)
                row(kind, booked, free, share)


def row(kind, booked, free, share):
    """Measure and print one row."""
    cores, waits = measured([*booked, *free], SECONDS)
    vcpus = booked[0].spec.vcpus
    each = min(cores[g] for g in free) / vcpus
    kept = min(cores[g] for g in booked) / vcpus / share
    both = [shown([w for g in gs for w in waits.get(g, [])]) for gs in (free, booked)]
    print(f"{kind:12}{each:11.4f}{kept:12.3f}   {both[0]}      {both[1]}", flush=True)
