"""The table of ``doc/source/admin/leases.rst``: ``tools/vm tests/vm/floor.py -s``.

Guests that always work share one CPU; amp-nova does not run. The limits of the bookings add up to
0.95 of the CPU. Three things keep best effort behind them: nothing; the kernel's idle class; the
weights of amp-nova.
"""

import random
import time

import pytest
from libvirt_qemu import qemuMonitorCommand

from amp_nova.model import cpu_weight
from tests.guests.guest import Guest, GuestSpec
from tests.vm.conftest import GUARD, IMAGE, UNIT, group, scope, sh

SECONDS, PERIOD_US = 30, 20_000
BOOKED_CORES = 0.95


def keep_back(kind, booked, free):
    """Set the weights and the class of every guest."""
    for guests, of_vcpus in ((booked, cpu_weight.booked), (free, cpu_weight.best_effort)):
        for guest in guests:
            idle = kind == "idle class" and guest in free
            (scope(guest) / "cpu.idle").write_text(str(int(idle)))
            if not idle:
                wanted = of_vcpus(guest.spec.vcpus) if kind == "weights" else cpu_weight.DEFAULT
                (scope(guest) / "cpu.weight").write_text(str(wanted))


def measured(guests):
    """CPU share of every guest, and how long its QEMU took to answer each time, in ms."""
    before, began, waits = [sum(g.cpu_ns()) for g in guests], time.monotonic(), {}
    while time.monotonic() < began + SECONDS:
        guest = random.choice(guests)
        asked = time.perf_counter()
        qemuMonitorCommand(guest.domain, '{"execute": "query-status"}', 0)
        waits.setdefault(guest, []).append(1e3 * (time.perf_counter() - asked))
        time.sleep(0.02 * random.random())
    took_ns = 1e9 * (time.monotonic() - began)
    return {
        g: (sum(g.cpu_ns()) - was) / took_ns for g, was in zip(guests, before, strict=True)
    }, waits


@pytest.mark.parametrize(("each", "vcpus"), [(1, 1), (4, 1), (1, 4), (1, 16)])
def test_floor(machine, each, vcpus):
    """Prints a row for each of the three."""
    sh(f"systemctl stop {UNIT} {GUARD}")
    cores = BOOKED_CORES / each / vcpus

    def guest(name):
        spec = GuestSpec(name=name, vcpus=vcpus, cpuset="1")
        machine.guests.append(Guest(machine.conn, spec, IMAGE).wait(120))
        return machine.guests[-1]

    free = [guest(f"free{i}") for i in range(each)]
    booked = [guest(f"booked{i}") for i in range(each)]
    for one in booked:
        for vcpu in range(vcpus):
            path = group(one).with_name(f"vcpu{vcpu}")
            (path / "cpu.max").write_text(f"{round(cores * PERIOD_US)} {PERIOD_US}")
    print(f"\n{each} + {each} guests of {vcpus} vCPUs, kernel {sh('uname -r')}")
    for kind in ("nothing", "idle class", "weights"):
        keep_back(kind, booked, free)
        time.sleep(2)
        got, waits = measured([*booked, *free])
        of_free = sorted(w for g in free for w in waits.get(g, [0.0]))
        of_booked = sorted(w for g in booked for w in waits.get(g, [0.0]))
        at = [of_free[int(q * (len(of_free) - 1))] for q in (0.5, 0.99, 1.0)]
        print(
            f"{kind:12}{min(got[g] for g in free) / vcpus:10.4f}"
            f"{min(got[g] for g in booked) / vcpus / cores:10.3f}"
            + "".join(f"{ms:9.1f}" for ms in (*at, of_booked[len(of_booked) // 2]))
            + f"   {len(of_free)} + {len(of_booked)} answers",
            flush=True,
        )
    machine.clear()
