"""``amp-nova demo --libvirt``: two real guests with the same work, on a fast and on a slow core.

They run on this machine's libvirt and QEMU and count their own work. On a machine with a single
core type, one CPU is slowed down meanwhile. The agent's own loop keeps their bookings through
libvirt and cgroups; other domains are ignored.
"""

import contextlib
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libvirt

from amp_nova import conf as options
from amp_nova.agent.loop import Loop
from amp_nova.agent.publish.exporter import Exporter
from amp_nova.agent.wiring import settings
from amp_nova.exceptions import AmpError, TopologyUnknown
from amp_nova.host.hotplug import OnlineTopology
from amp_nova.host.libvirt.hypervisor import Hypervisor
from amp_nova.host.machine import load_topology
from amp_nova.host.sensor import HostPaths, LibvirtSensor
from amp_nova.host.writer import Writer
from amp_nova.lab import slowcore
from amp_nova.lab.guest import Guest, GuestSpec, build
from amp_nova.model.topology import CoreType, PCpu, Topology

REFCORES = 0.5
WITHOUT_S = 4.0
WARM_UP_S = 1.0
STRETCH_S = 3.0
TOLERANCE_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class Places:
    """The two pCPUs the guests run on; ``emulated`` if the slow one has to be slowed down."""

    fast: int
    slow: int
    emulated: bool


@dataclass(frozen=True, slots=True)
class Stretch:
    """What the fast and the slow guest did per second: rounds of work, and CPU seconds."""

    work: tuple[float, float]
    cores: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the run showed. ``coefficient``: speed of the fast core over the slow one."""

    coefficient: float
    delivered_ratios: tuple[float, float]
    work_without: float
    work_with: float

    @property
    def error_ratio(self) -> float:
        """The greatest distance of a delivered ratio from 1."""
        return max(abs(ratio - 1) for ratio in self.delivered_ratios)

    @property
    def delivered(self) -> bool:
        """Whether both bookings were delivered."""
        return self.error_ratio <= TOLERANCE_RATIO

    def figures(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "held": self.delivered,
            "coefficient": self.coefficient,
            "delivered_ratio": dict(zip(("fast", "slow"), self.delivered_ratios, strict=True)),
            "work_fast_over_slow": {"without": self.work_without, "with": self.work_with},
        }

    def __str__(self) -> str:
        kept = f"within {self.error_ratio:.1%} on both core types"
        if not self.delivered:
            kept = f"only within {self.error_ratio:.1%}"
        hint = "" if self.delivered else " Is the machine busy with something else?"
        return (
            f"On real guests the bookings were delivered {kept}, and their counted work differed "
            f"by {abs(self.work_with - 1):.1%}; without amp-nova the guest on the fast core did "
            f"{self.work_without:.1f} times the work.{hint}"
        )


def places() -> Places:
    """A pCPU of the fastest type and one of the slowest; else two of the same type."""
    usable = sorted(os.sched_getaffinity(0))
    try:
        topology = load_topology(options.load())
    except TopologyUnknown:
        topology = None
    if topology is not None and len(topology.core_types) > 1:
        slow = topology.pcpus_of(topology.core_types[0].name) & set(usable)
        fast = topology.pcpus_of(topology.core_types[-1].name) & set(usable)
        if slow and fast:
            return Places(min(fast), min(slow), emulated=False)
    if len(usable) < 2:
        raise AmpError("demo --libvirt needs two usable CPUs, and there is one: leave it out")
    return Places(usable[0], usable[-1], emulated=True)


@contextlib.contextmanager
def guests(where: Places, folder: Path) -> Iterator[tuple[Guest, Guest]]:
    """The two guests, pinned by libvirt as Nova would; destroyed on exit."""
    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    try:
        conn = libvirt.open("qemu:///system")
    except libvirt.libvirtError as exc:
        raise AmpError(
            f"libvirt does not answer ({exc}): start libvirtd, or leave --libvirt out"
        ) from exc
    image, prefix = build(folder), f"amp-demo-{uuid.uuid4().hex[:6]}"
    specs = {"amp:pref_core": f"{REFCORES:g}"}
    with contextlib.ExitStack() as stack:
        stack.callback(conn.close)
        started = []
        for name, cpu in (("fast", where.fast), ("slow", where.slow)):
            guest = Guest(conn, GuestSpec(f"{prefix}-{name}", specs=specs, cpuset=str(cpu)), image)
            stack.callback(guest.close)
            started.append(guest)
        fast, slow = (guest.wait() for guest in started)
        yield fast, slow


def stretch(pair: tuple[Guest, Guest], length_s: float, tick: Callable[[], None]) -> Stretch:
    """Measure both guests for ``length_s``; ``tick`` is called once a second meanwhile."""
    before = [(g.rounds()[0], g.cpu_ns()[0]) for g in pair]
    began_s = time.monotonic()
    while (left_s := began_s + length_s - time.monotonic()) > 0:
        time.sleep(min(1.0, left_s))
        tick()
    after = [(g.rounds()[0], g.cpu_ns()[0]) for g in pair]
    took_s = time.monotonic() - began_s
    both = list(zip(before, after, strict=True))
    fast, slow = ((b[0] - a[0]) / took_s for a, b in both)
    fast_cores, slow_cores = ((b[1] - a[1]) / 1e9 / took_s for a, b in both)
    return Stretch((fast, slow), (fast_cores, slow_cores))


def _sensor(pair: tuple[Guest, Guest], where: Places, coefficient: float) -> LibvirtSensor:
    types = (
        CoreType("slow", 1.0, "reference core"),
        CoreType("fast", coefficient, "the guests' own work"),
    )
    pcpus = tuple(sorted([PCpu(where.fast, "fast"), PCpu(where.slow, "slow")], key=lambda p: p.id))
    topology, online = Topology(types, pcpus, "slow", "demo"), frozenset(p.id for p in pcpus)
    names = {g.spec.name for g in pair}
    hypervisor = Hypervisor("qemu:///system", wanted=names.__contains__)
    run_path = Path(options.load(files=[]).agent.libvirt_run_path)
    on = OnlineTopology(lambda: topology, lambda: online)
    return LibvirtSensor(hypervisor, on, HostPaths(run_path))


def run(duration_s: int, exporter: Exporter, metrics: str, say: Callable[[str], None]) -> Verdict:
    """Run it and ``say`` what happens; ``exporter`` is served at ``metrics``."""
    if (reason := slowcore.available()) is not None:
        raise AmpError(f"demo --libvirt cannot run here: {reason}")
    where = places()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amp-demo-")))
        folder.chmod(0o755)  # QEMU may run as another user
        if where.emulated:
            stack.enter_context(slowcore.SlowCore(where.slow))
            say(f"CPU {where.slow} is slowed down to about half its speed meanwhile.")
        pair = stack.enter_context(guests(where, folder))
        say(f"Two real guests, each booking {REFCORES:g} reference cores: one on CPU {where.fast}")
        say(f"(fast), one on CPU {where.slow} (slow). First without amp-nova:\n")
        without = stretch(pair, WITHOUT_S, lambda: None)
        say(_row("without", without))
        coefficient = (without.work[0] / without.cores[0]) / (without.work[1] / without.cores[1])
        say(f"\nThe fast core does {coefficient:.2f} times the work of the slow one.")
        say(f"Now with amp-nova; metrics at {metrics}\n")
        sensor = _sensor(pair, where, coefficient)
        loop = Loop(sensor, Writer(sensor), settings(options.load(files=[])))

        def tick() -> None:
            exporter.update(loop.cycle())

        stretch(pair, WARM_UP_S, tick)
        kept = []
        for _ in range(max(2, duration_s // 4)):
            kept.append(stretch(pair, STRETCH_S, tick))
            say(_row("with", kept[-1], coefficient))
    fast = statistics.fmean(s.cores[0] for s in kept) * coefficient / REFCORES
    slow = statistics.fmean(s.cores[1] for s in kept) / REFCORES
    work = statistics.median(s.work[0] / s.work[1] for s in kept)
    return Verdict(coefficient, (fast, slow), without.work[0] / without.work[1], work)


def _row(label: str, seen: Stretch, coefficient: float | None = None) -> str:
    text = f"{label:>8}   work fast/slow {seen.work[0] / seen.work[1]:5.3f}"
    text += f"   CPU time fast {seen.cores[0]:.4f}  slow {seen.cores[1]:.4f}"
    if coefficient is not None:
        delivered = seen.cores[0] * coefficient
        text += f"   delivered refcores {delivered:.4f}  {seen.cores[1]:.4f}"
    return text
