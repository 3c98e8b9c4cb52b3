"""What the fast loop costs, over 1, 40 and 400 vCPUs that book Ips; prints, asserts nothing.

All vCPUs are real threads of real QEMU guests, each with a counter, a cgroup and a booking of its
own; where memory does not suffice there are fewer, and the output says so. Most of the time they
sleep: 400 that work would leave this loop no CPU to be measured on. Half of the run they are as
they are, half of it every look is made to think that they ran, which is what a look at a vCPU that
works costs. Beside it, in the same process: the same loop with nothing to look at.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amp_nova.agent.fast_loop import FastLoop, Governed
from amp_nova.control.ips_controller import Terms
from amp_nova.host.counters.sources import Counters
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.topology import CoreType, PCpu, Topology
from tests.lab import FAST, SLOW, Lab, opened

WATCH_S = 6.0
VCPUS_PER_GUEST = 20
GUEST_MIB = 150
NAP_NS = 4_000_000_000
BOOKED_IPS = 50e6
LIMIT = Bandwidth(2000, 20000)


def room() -> int:
    """How many guests fit into half of what memory is free."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024 // 2 // GUEST_MIB
    raise AssertionError("no MemAvailable")


def resident_mib() -> float:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


class Busy:
    """The host's own FastPort, whose vCPUs seem to have worked since the last sample."""

    def __init__(self, host: Any) -> None:
        self.throttle = host.throttle
        self._host = host
        self._looks = itertools.count(1)

    def sample(self, keys: Any) -> dict[Any, Any]:
        """As read, plus 2 ms of running at the booked speed for every look."""
        number = next(self._looks)
        return {
            key: replace(
                s,
                run_ns=s.run_ns + 2_000_000 * number,
                wait_ns=s.wait_ns + 18_000_000 * number,
                instructions=s.instructions + round(BOOKED_IPS / 50) * number,
            )
            for key, s in self._host.sample(keys).items()
        }


def spent(look: Callable[[], object], tick_s: float) -> tuple[float, float]:
    """CPU share of one core, and median microseconds a look, of looking at this pace."""
    looks, begin, cpu_s = [], time.monotonic(), time.thread_time()
    for number in itertools.count(1):
        due = begin + number * tick_s
        if due > begin + WATCH_S:
            break
        time.sleep(max(0.0, due - time.monotonic()))
        before = time.perf_counter()
        look()
        looks.append(time.perf_counter() - before)
    took_s = time.monotonic() - begin
    return (time.thread_time() - cpu_s) / took_s, sorted(looks)[len(looks) // 2] * 1e6


def host_of(lab: Lab) -> Any:
    """The lab's domains as an agent has them."""
    from amp_nova.host.libvirt.hypervisor import Hypervisor
    from amp_nova.host.node import LibvirtHost

    pcpus = (PCpu(FAST, "only"), PCpu(SLOW, "only"))
    topology = Topology((CoreType("only", 1.0),), pcpus, "only", "test")
    hypervisor = Hypervisor("qemu:///system", wanted=lambda n: n.startswith(lab.prefix))
    return LibvirtHost(
        hypervisor,
        lambda: topology,
        lambda: frozenset({FAST, SLOW}),
        Path("/run/libvirt/qemu"),
        counters=Counters(),
    )


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with opened(tmp_path_factory.mktemp("lab")) as made:
        yield made


def test_cost_of_the_fast_loop(lab: Lab) -> None:
    """CPU share and memory against the same loop doing nothing."""
    guests: list[Any] = []
    for count in (1, 40, 400):
        while (have := sum(g.spec.vcpus for g in guests)) < count and room():
            vcpus = min(count - have, VCPUS_PER_GUEST)
            name, cpuset = str(len(guests)), f"{FAST},{SLOW}"
            guest = lab.guest(name, vcpus=vcpus, counter=True, cpuset=cpuset)
            guest.nap(NAP_NS)
            guests.append(guest)
        host = host_of(lab)
        before_mib = resident_mib()
        seen = host.observe()
        opened_mib = resident_mib()
        keys = [(d.domain.resource, v.index) for d in seen.domains for v in d.vcpus][:count]
        fast = FastLoop(host)
        busy = FastLoop(Busy(host))
        for loop in (fast, busy):
            loop.govern(dict.fromkeys(keys, Governed(Terms(BOOKED_IPS), LIMIT)))
            loop.tick()
        governed_mib = resident_mib()
        less = "" if len(keys) == count else f" of {count}: no memory for more"
        print(f"\n== {len(keys)} real vCPUs{less}; a look every {fast.tick_s * 1e3:.0f} ms")
        nothing, nothing_us = spent(FastLoop(host).tick, fast.tick_s)
        for label, loop in (("asleep", fast), ("as if at work", busy)):
            share, look_us = spent(loop.tick, loop.tick_s)
            print(
                f"{label}: CPU share {share:.2%} of one core (nothing to do: {nothing:.2%}), "
                f"a look {look_us:.0f} us (nothing: {nothing_us:.0f} us), "
                f"{look_us / len(keys):.1f} us a vCPU, {loop.writes} writes"
            )
        print(
            f"memory: {opened_mib - before_mib:.1f} MiB for descriptors and readings, "
            f"{governed_mib - opened_mib:.1f} MiB for both loops"
        )
        del host
