"""``amp-nova demo --libvirt``: two real guests with the same work, on a fast and on a slow core.

They run on this machine's libvirt and QEMU and count their own work. Where the machine has cores
of one type only, one CPU is honestly slowed down for the time. The agent's own loop keeps their
bookings through libvirt and cgroups; other domains are not looked at.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import libvirt

from amp_nova import conf as options
from amp_nova.agent.loop import Loop
from amp_nova.agent.publish.exporter import Exporter
from amp_nova.agent.service import settings
from amp_nova.exceptions import AmpError, TopologyUnknown
from amp_nova.host.libvirt.hypervisor import Hypervisor
from amp_nova.host.machine import load_topology
from amp_nova.host.node import LibvirtHost
from amp_nova.lab import slowcore
from amp_nova.lab.guest import Guest, GuestSpec, build
from amp_nova.model.topology import CoreType, PCpu, Topology

REFCORES = 0.5
CALIBRATION_S = 4.0
TOLERANCE_RATIO = 0.05
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Places:
    """The two pCPUs the guests are put on, and how they come to differ."""

    fast: int
    slow: int
    emulated: bool


@dataclass(frozen=True, slots=True)
class Stretch:
    """One stretch of time for the fast and the slow guest: work and CPU seconds a second."""

    work: tuple[float, float]
    cores: tuple[float, float]


def places() -> Places:
    """A pCPU of the fastest type and one of the slowest, or two of the same, one to be slowed."""
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
        raise AmpError("demo --libvirt needs two CPUs that it may use, and there is one")
    return Places(usable[0], usable[-1], emulated=True)


@contextlib.contextmanager
def guests(where: Places, folder: Path) -> Iterator[tuple[Guest, Guest]]:
    """The two guests, pinned by libvirt as Nova would; gone afterwards."""
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
        made = []
        for name, cpu in (("fast", where.fast), ("slow", where.slow)):
            spec = GuestSpec(f"{prefix}-{name}", specs=specs, cpuset=str(cpu))
            guest = Guest(conn, spec, image)
            stack.callback(guest.close)
            made.append(guest)
        fast, slow = (guest.wait() for guest in made)
        yield fast, slow


def stretch(pair: tuple[Guest, Guest], length_s: float, tick: Callable[[], None]) -> Stretch:
    """What both guests did; ``tick`` is called once a second meanwhile."""
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


def _topology(where: Places, coefficient: float) -> Topology:
    types = (
        CoreType("slow", 1.0, "reference core"),
        CoreType("fast", coefficient, "the guests' own work"),
    )
    pcpus = tuple(sorted([PCpu(where.fast, "fast"), PCpu(where.slow, "slow")], key=lambda p: p.id))
    return Topology(types, pcpus, "slow", "demo")


def _host(names: set[str], topology: Topology) -> LibvirtHost:
    conf = options.load(files=[])
    hypervisor = Hypervisor("qemu:///system", wanted=names.__contains__)
    online = frozenset(p.id for p in topology.pcpus)
    return LibvirtHost(
        hypervisor, lambda: topology, lambda: online, Path(conf.agent.libvirt_run_path)
    )


def run(args: argparse.Namespace) -> int:
    """Show it, and say in one sentence what it showed; 1 if a booking was not kept."""
    if (reason := slowcore.available()) is not None:
        raise AmpError(f"demo --libvirt cannot run here: {reason}")
    where = places()
    say = (lambda _text: None) if args.format == "json" else _say
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amp-demo-")))
        folder.chmod(0o755)  # QEMU may run as another user
        if where.emulated:
            stack.enter_context(slowcore.SlowCore(where.slow))
            say(f"CPU {where.slow} is slowed down to about half its speed for the time.")
        pair = stack.enter_context(guests(where, folder))
        say(f"Two real guests, each booking {REFCORES:g} reference cores: one on CPU {where.fast}")
        say(f"(fast), one on CPU {where.slow} (slow). First without amp-nova:\n")
        without = stretch(pair, CALIBRATION_S, lambda: None)
        _row(say, "without", without, None)
        coefficient = _speed(without)
        kept = _kept(args, pair, where, coefficient, say)
    return _verdict(args, without, kept, coefficient)


def _speed(seen: Stretch) -> float:
    """Speed of the fast core over the slow one: work a CPU second."""
    return (seen.work[0] / seen.cores[0]) / (seen.work[1] / seen.cores[1])


def _kept(
    args: argparse.Namespace,
    pair: tuple[Guest, Guest],
    where: Places,
    coefficient: float,
    say: Callable[[str], None],
) -> list[Stretch]:
    host = _host({g.spec.name for g in pair}, _topology(where, coefficient))
    loop, exporter = Loop(host, host, settings(options.load(files=[]))), Exporter()
    address, port = exporter.start_http("127.0.0.1", args.port)
    say(
        f"\nThe fast core does {coefficient:.2f} times the work of the slow one. Now with amp-nova;"
    )
    say(f"metrics at http://{address}:{port}/metrics\n")

    def tick() -> None:
        exporter.update(loop.cycle())

    stretch(pair, SETTLE_S, tick)
    seen = []
    for _ in range(max(2, args.duration // 4)):
        seen.append(stretch(pair, 3.0, tick))
        _row(say, "with", seen[-1], coefficient)
    return seen


def _row(say: Callable[[str], None], label: str, seen: Stretch, coefficient: float | None) -> None:
    fast, slow = seen.work
    text = f"{label:>8}   work fast/slow {fast / slow:5.3f}"
    text += f"   CPU time fast {seen.cores[0]:.4f}  slow {seen.cores[1]:.4f}"
    if coefficient is not None:
        delivered = seen.cores[0] * coefficient, seen.cores[1]
        text += f"   delivered refcores {delivered[0]:.4f}  {delivered[1]:.4f}"
    say(text)


def _verdict(
    args: argparse.Namespace, without: Stretch, kept: list[Stretch], coefficient: float
) -> int:
    fast = statistics.fmean(s.cores[0] for s in kept) * coefficient / REFCORES
    slow = statistics.fmean(s.cores[1] for s in kept) / REFCORES
    work = statistics.median(s.work[0] / s.work[1] for s in kept)
    off = max(abs(fast - 1), abs(slow - 1))
    held = off <= TOLERANCE_RATIO
    before = without.work[0] / without.work[1]
    if args.format == "json":
        figures = {
            "held": held,
            "coefficient": coefficient,
            "delivered_ratio": {"fast": fast, "slow": slow},
            "work_fast_over_slow": {"without": before, "with": work},
        }
        print(json.dumps(figures, indent=2))
        return 0 if held else 1
    on_both = f"within {off:.1%} on both core types" if held else f"only within {off:.1%}"
    print(
        f"\nOn real guests the bookings were delivered {on_both}, and their counted work differed "
        f"by {abs(work - 1):.1%}; without amp-nova the guest on the fast core did {before:.1f} "
        f"times the work{'.' if held else '. Is the machine busy with something else?'}"
    )
    return 0 if held else 1


def _say(text: str) -> None:
    print(text, flush=True)
    sys.stdout.flush()
