"""Both back ends of the writer side by side, on real guests; prints, asserts nothing.

Precision: CPU time over booking of guests that book 0.1, 0.25 and 0.5 reference cores on the
reference core, and instructions over booking of one that books Ips on the other core, each with a
real agent. Cost: of a write, in the agent and in libvirtd, with one guest and with twenty that
sleep.
"""

import os
import statistics as st
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amp_nova.model.allocation import Change, Changes, Step
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.topology import CoreType, PCpu, Topology
from tests.benchmarks.scale import scaled
from tests.lab import FAST, SLOW, Agent, Lab, opened

WRITERS = ("cgroup", "libvirt")
WINDOW_S = scaled(3.0, 0.5)
WINDOWS = scaled(10, 1)
WARM_UP_S = scaled(5.0, 1.0)
BOOKINGS = (0.1, 0.25, 0.5)
IPS_RATIO = 0.3
DOMAINS = scaled(20, 2)
WRITES = scaled(50, 3)
NAP_NS = 4_000_000_000
LIMITS = (Bandwidth(5000, 20000), Bandwidth(6000, 20000))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with opened(tmp_path_factory.mktemp("lab")) as made:
        yield made


@pytest.fixture
def guests(lab: Lab) -> Iterator[Lab]:
    yield lab
    lab.clear()


def spread(values: list[float]) -> str:
    return f"median {st.median(values):7.2%}  range {min(values):7.2%} to {max(values):7.2%}"


def test_precision(guests: Lab, tmp_path: Path) -> None:
    """What each guest got over what it booked, in windows of 3 s."""
    free = guests.guest("free", cpuset=str(FAST), counter=True)
    ips = IPS_RATIO * rate(free, WINDOW_S)
    free.close()
    booked = {
        guests.guest(f"b{b}", {"amp:pref_core": str(b)}, cpuset=str(SLOW)): b for b in BOOKINGS
    }
    counted = guests.guest("ips", {"amp:ips": f"{ips:.0f}"}, cpuset=str(FAST), counter=True)
    for writer in WRITERS:
        found: dict[str, list[float]] = {}
        agent = Agent(tmp_path / writer, more=f"writer = {writer}\n").start()
        try:
            time.sleep(WARM_UP_S)
            for _ in range(WINDOWS):
                before, began = {g: g.cpu_ns()[0] for g in booked}, time.monotonic()
                got = rate(counted, WINDOW_S)
                for guest, refcores in booked.items():
                    used_s = (guest.cpu_ns()[0] - before[guest]) / 1e9
                    took_s = time.monotonic() - began
                    found.setdefault(f"{refcores} reference cores", []).append(
                        used_s / took_s / refcores
                    )
                found.setdefault("Ips, 0.3 of a core", []).append(got / ips)
            print(f"\n== writer = {writer}: got over booked, windows of {WINDOW_S:g} s")
            for label, ratios in found.items():
                print(f"{label:22} {spread(ratios)}")
            print(f"writes {agent.metric('amp_writes_total'):.0f}", end=", ")
            print(f"calls to libvirt {agent.metric('amp_libvirt_calls_total'):.0f}")
            assert agent.cli("release", "--all").returncode == 0
        finally:
            agent.stop()


def rate(guest: Any, seconds: float) -> float:
    """Instructions per second, from the plugin's file."""
    before, began = guest.instructions()[0], time.monotonic()
    time.sleep(seconds)
    return float(guest.instructions()[0] - before) / (time.monotonic() - began)


def host_of(lab: Lab, writer: str) -> tuple[Any, Any]:
    """Sensor and writer of the lab's domains."""
    from amp_nova.agent.wiring import BACKENDS
    from amp_nova.host.libvirt.hypervisor import Hypervisor
    from amp_nova.host.machine import OnlineTopology
    from amp_nova.host.sensor import LibvirtSensor
    from amp_nova.host.writer import Conditions, Writer

    pcpus = (PCpu(FAST, "only"), PCpu(SLOW, "only"))
    topology = Topology((CoreType("only", 1.0),), pcpus, "only", "test")
    hypervisor = Hypervisor(
        "qemu:///system",
        wanted=lambda name: name.startswith(lab.prefix),
        writable=writer == "libvirt",
    )
    online = OnlineTopology(lambda: topology, lambda: frozenset({FAST, SLOW}))
    sensor = LibvirtSensor(hypervisor, online)
    return sensor, Writer(sensor, Conditions(), BACKENDS[writer](hypervisor))


def libvirtd_cpu_s() -> float:
    """CPU time of libvirt's daemon so far."""
    for name in ("libvirtd", "virtqemud"):
        path = Path(f"/run/{name}.pid")
        if path.exists():
            fields = Path(f"/proc/{path.read_text().strip()}/stat").read_text().rsplit(")")[-1]
            return sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")
    return float("nan")


@pytest.mark.parametrize("domains", [1, DOMAINS])
def test_cost(guests: Lab, domains: int) -> None:
    """A new limit of every guest, again and again; then a first limit and a pin of each."""
    for number in range(domains):
        guests.guest(f"n{number}", cpuset=f"{FAST},{SLOW}").nap(NAP_NS)
    print(f"\n== {domains} domains; milliseconds for a change of each")
    for writer in WRITERS:
        sensor, made = host_of(guests, writer)
        seen = sensor.observe()
        keys = [(d.domain.resource, v.index) for d in seen.domains for v in d.vcpus]
        pins = (frozenset({FAST}), frozenset({FAST, SLOW}))
        for what, change in (
            ("limit", lambda i: made.throttle(dict.fromkeys(keys, LIMITS[i % 2]))),  # noqa: B023
            ("pin", lambda i: _pin(made, keys, pins[i % 2])),  # noqa: B023
        ):
            change(1)
            wall, cpu_s, daemon_s = [], time.process_time(), libvirtd_cpu_s()
            for i in range(WRITES):
                began = time.perf_counter()
                sensor.hypervisor.domains()  # a new cycle, with time of its own
                failures = change(i)
                wall.append((time.perf_counter() - began) * 1e3)
                assert not failures
            each = 1e3 / WRITES
            print(
                f"{writer:8} {what:6} wall median {st.median(wall):8.3f}  max {max(wall):8.3f}  "
                f"CPU: agent {(time.process_time() - cpu_s) * each:7.3f}, "
                f"libvirtd {(libvirtd_cpu_s() - daemon_s) * each:7.3f}"
            )
        for reading in sensor.observe().domains:
            assert made.release(reading) == ()


def _pin(writer: Any, keys: list[Any], pcpus: frozenset[int]) -> Any:
    return writer.apply(Changes(tuple(Change(k, (Step(pcpus=pcpus),)) for k in keys))).failures
