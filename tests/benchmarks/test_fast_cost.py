"""What the fast loop costs, over 1, 40 and 400 vCPUs that book Ips; prints, asserts nothing.

All vCPUs are real threads of real QEMU guests, each with a counter, a cgroup and a booking of its
own; if there is not enough memory there are fewer, and the output says so. Most of the time they
sleep: 400 that work would leave this loop no CPU to be measured on. In one part of the run samples
are as read; in two others every sample is changed as if the vCPU had run, to measure the cost of
vCPUs that work: at first, and once their work is known to be steady. For comparison: the same
loop without vCPUs, in the same process.
"""

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amp_nova.agent.fast_loop import FastLoop, Target
from amp_nova.agent.operator.locks import locked
from amp_nova.agent.operator.pause import Pauses
from amp_nova.control.ips_controller import Terms
from amp_nova.host.counters.sources import Counters
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Sample
from amp_nova.model.topology import CoreType, PCpu, Topology
from tests.benchmarks.scale import scaled
from tests.lab import FAST, SLOW, Lab, opened

WATCH_S = scaled(6.0, 0.5)
VCPUS_PER_GUEST = 20
GUEST_MIB = 150
NAP_NS = 4_000_000_000
BOOKED_IPS = 50e6
LIMIT = Bandwidth(2000, 20000)


def guests_max() -> int:
    """How many guests fit into half of the free memory."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024 // 2 // GUEST_MIB
    raise AssertionError("no MemAvailable")


def resident_mib() -> float:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


class Busy:
    """The host's own sensor, but all vCPUs seem to work at the booked speed, within their limit."""

    def __init__(self, sensor: Any) -> None:
        self._sensor = sensor
        self._begin_ns = time.monotonic_ns()
        self.pretending_s = 0.0
        """CPU time that only this stand-in takes, which is no cost of the loop."""
        self.observe = sensor.observe

    def sample(self, keys: Any) -> dict[Any, Any]:
        """Read in full, as of vCPUs that ran; a tenth of the time, at the booked speed."""
        begin_s, found = time.thread_time(), {}
        for key in keys:
            self._sensor.thread(key)._sampled = None
        self.pretending_s += time.thread_time() - begin_s
        samples, begin_s = self._sensor.sample(keys), time.thread_time()
        for key, s in samples.items():
            passed_ns = s.time_ns - self._begin_ns
            run_ns, instructions = passed_ns // 10, int(BOOKED_IPS * passed_ns / 1e9)
            found[key] = Sample(s.time_ns, run_ns, passed_ns - run_ns, instructions)
        self.pretending_s += time.thread_time() - begin_s
        return found


def spent(loop: FastLoop) -> tuple[float, float, float]:
    """CPU share of one core; mean microseconds per run of the loop; runs per second."""
    took, begin, cpu_s = [], time.monotonic(), time.thread_time()
    due, passed = begin, 0
    while True:
        ticks = loop.next_tick
        # Late ticks are skipped, not caught up on, as by the service; the share is as without them.
        due = max(due + ticks * loop.tick_s, time.monotonic())
        if due >= begin + WATCH_S:
            break
        time.sleep(max(0.0, due - time.monotonic()))
        before = time.perf_counter()
        loop.tick(ticks)
        took.append(time.perf_counter() - before)
        passed += ticks
    lasted_s = passed * loop.tick_s
    share = (time.thread_time() - cpu_s) / lasted_s
    return share, sum(took) / len(took) * 1e6, len(took) / lasted_s


def host_of(lab: Lab, state_path: Path) -> tuple[Any, Any]:
    """Sensor and writer of the lab's domains, with lock and pauses, as an agent has them."""
    from amp_nova.host.libvirt.hypervisor import Hypervisor
    from amp_nova.host.machine import OnlineTopology
    from amp_nova.host.sensor import LibvirtSensor
    from amp_nova.host.writer import Conditions, Writer

    pcpus = (PCpu(FAST, "only"), PCpu(SLOW, "only"))
    topology = Topology((CoreType("only", 1.0),), pcpus, "only", "test")
    hypervisor = Hypervisor("qemu:///system", wanted=lambda n: n.startswith(lab.prefix))
    online = OnlineTopology(lambda: topology, lambda: frozenset({FAST, SLOW}))
    sensor = LibvirtSensor(hypervisor, online, counters=Counters())
    conditions = Conditions(
        Pauses(state_path).current, lambda wait_s: locked(state_path, "lock", wait_s=wait_s)
    )
    return sensor, Writer(sensor, conditions)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with opened(tmp_path_factory.mktemp("lab")) as made:
        yield made


def test_cost_of_the_fast_loop(lab: Lab, tmp_path: Path) -> None:
    """CPU share and memory, compared with the same loop without vCPUs."""
    guests: list[Any] = []
    gc.collect()
    gc.freeze()  # as the agent does
    for count in scaled((1, 40, 400), (1,)):
        while (have := sum(g.spec.vcpus for g in guests)) < count and guests_max():
            vcpus = min(count - have, VCPUS_PER_GUEST)
            name, cpuset = str(len(guests)), f"{FAST},{SLOW}"
            guest = lab.guest(name, vcpus=vcpus, counter=True, cpuset=cpuset)
            guest.nap(NAP_NS)
            guests.append(guest)
        sensor, writer = host_of(lab, tmp_path)
        before_mib = resident_mib()
        seen = sensor.observe()
        opened_mib = resident_mib()
        keys = [(d.domain.resource, v.index) for d in seen.domains for v in d.vcpus][:count]
        fast, stand_in = FastLoop(sensor, writer), Busy(sensor)
        busy = FastLoop(stand_in, writer)
        for loop in (fast, busy):
            loop.follow(dict.fromkeys(keys, Target(Terms(BOOKED_IPS), LIMIT)))
            loop.tick()
        followed_mib = resident_mib()
        less = "" if len(keys) == count else f" of {count}: no memory for more"
        print(f"\n== {len(keys)} real vCPUs{less}; a tick every {fast.tick_s * 1e3:.0f} ms")
        nothing, nothing_us, _ = spent(FastLoop(sensor, writer))
        for label, loop in (
            ("asleep", fast),
            ("as if at work, at first", busy),
            ("as if at work, later", busy),
        ):
            writes, pretending_s = loop.writes, stand_in.pretending_s
            share, tick_us, rate = spent(loop)
            print(
                f"{label}: CPU share {share:.2%} of one core (without vCPUs: {nothing:.2%}), "
                f"{rate:.0f} runs a second, each {tick_us:.0f} us (without vCPUs: {nothing_us:.0f} "
                f"us), {loop.writes - writes} writes; of the CPU share, "
                f"{(stand_in.pretending_s - pretending_s) / WATCH_S:.2%} only make it seem so"
            )
        print(
            f"memory: {opened_mib - before_mib:.1f} MiB for descriptors and readings, "
            f"{followed_mib - opened_mib:.1f} MiB for both loops"
        )
        del sensor, writer
