"""What runs in a guest: its speed on each core type, when it wants a pCPU, and its barriers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from amp_nova.model.topology import Topology
from amp_nova.sim.scenarios import programs
from amp_nova.sim.scenarios.document import Value
from amp_nova.sim.scenarios.hosts import RATE_LEAST, RATE_MOST, STEP_MIN_S
from amp_nova.sim.scenarios.programs import Io, Lock, Requests, Threads

KEYS = (
    "speedup",
    "ipc",
    "utilization",
    "work_refcore_s",
    "barrier_s",
    "phases",
    "phases_follow",
    "io",
    "working_set_bytes",
)
"""Keys for what one vCPU does."""
FOLLOW = ("work", "clock")
SHARED = ("requests", "lock", "threads", "barrier_wait")
"""Keys for what the vCPUs of a VM share."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a workload.

    ``speeds`` by core type, slowest type first, over the speed on the slowest type;
    ``utilization_ratio`` is the share of time it wants a pCPU; ``ipc_ratio`` its instructions per
    cycle, and therefore per second, over what is usual for the workload. It lasts until
    ``work_ref_s`` of work are done, if given, else for ``for_s``.
    """

    speeds: tuple[float, ...]
    utilization_ratio: float = 1.0
    for_s: float = math.inf
    ipc_ratio: float = 1.0
    work_ref_s: float | None = None

    def by_work(self) -> "Phase":
        """The phase that ends after the work of ``for_s`` alone on the slowest type.

        If it only sleeps, it ends by the clock.
        """
        work_ref_s = self.for_s * self.utilization_ratio
        return replace(self, for_s=math.inf, work_ref_s=work_ref_s) if work_ref_s else self


@dataclass(frozen=True, slots=True)
class Workload:
    """What every vCPU of a guest does: its phases in turn, repeated.

    Work is counted in seconds alone on the slowest core type. ``work_ref_s``: work of each vCPU,
    ``None`` if endless. ``barrier_ref_s``: the vCPUs wait for each other after this much work;
    several values apply in turn, again and again. ``ipc``: instructions per cycle by core type, if
    given. ``vcpus``: what vCPU 0, 1, ... does instead; the last one applies to all vCPUs after it.
    ``io`` or ``requests`` decide when a vCPU wants a pCPU and how much it does then. ``shared``: a
    lock, or threads that are spread over them. ``spins``: whether they wait busily at barriers.
    ``working_set_bytes``: a vCPU loads them again after a move to another cache.
    """

    phases: tuple[Phase, ...]
    work_ref_s: float | None = None
    barrier_ref_s: float | tuple[float, ...] | None = None
    ipc: Mapping[str, float] = field(default_factory=dict)
    vcpus: "tuple[Workload, ...]" = ()
    io: Io | None = None
    requests: Requests | None = None
    shared: Lock | Threads | None = None
    spins: bool = False
    working_set_bytes: float = 0.0

    def different(self, vcpus: int) -> "tuple[Workload, ...]":
        """What the first of ``vcpus`` vCPUs do; any further ones do the same as the last."""
        return self.vcpus[:vcpus] or (self,)

    def each(self, vcpus: int) -> "list[Workload]":
        """What each of ``vcpus`` vCPUs does."""
        different = self.different(vcpus)
        return [different[min(index, len(different) - 1)] for index in range(vcpus)]

    @property
    def barriers_ref_s(self) -> tuple[float, ...]:
        """Work before each of the barriers, in turn; empty without barriers."""
        between = self.barrier_ref_s
        if between is None:
            return ()
        return between if isinstance(between, tuple) else (between,)

    @property
    def by_work(self) -> bool:
        """Whether some phases end once a vCPU has done their work."""
        return any(p.work_ref_s is not None for p in self.phases)

    @property
    def parallel(self) -> bool:
        """Whether vCPUs wait for each other."""
        barriers = any(w.barrier_ref_s is not None for w in (self, *self.vcpus))
        return barriers or isinstance(self.shared, Lock)


def usual(topology: Topology) -> Workload:
    """A workload that always runs and gains what the coefficients say."""
    return Workload((Phase(_coefficients(topology)),))


def read(value: Value, topology: Topology, vcpus: int) -> Workload:
    """The workload of a VM with ``vcpus`` vCPUs."""
    keys = value.fields((*KEYS, "vcpus", *SHARED))
    own = keys.pop("vcpus", None)
    queue, lock, threads, wait = (keys.pop(key, None) for key in SHARED)
    whole = replace(
        _read(keys, topology),
        requests=programs.requests(queue) if queue else None,
        shared=programs.threads(threads) if threads else programs.lock(lock) if lock else None,
        spins=wait is not None and wait.one_of(("sleep", "spin"), "how to wait") == "spin",
    )
    if lock and threads:
        raise value.wrong(f"{value.path} gives threads and lock: remove one")
    if own is not None:
        whole = replace(whole, vcpus=_each(own, keys, topology, vcpus))
    for one in whole.different(vcpus):
        _check(value, one, whole)
    return whole


def _each(
    own: Value, keys: Mapping[str, Value], topology: Topology, vcpus: int
) -> tuple[Workload, ...]:
    entries = own.items("a list of what vCPU 0, 1, ... does instead")
    if not 0 < len(entries) <= vcpus:
        raise own.wrong(
            f"{own.path} has {len(entries)} entries for {vcpus} vCPUs: give one to {vcpus}"
        )
    return tuple(_read({**keys, **entry.fields(KEYS)}, topology) for entry in entries)


def _check(value: Value, one: Workload, whole: Workload) -> None:
    """Refuse a workload in which two keys decide when a vCPU wants a pCPU or what it waits for."""
    if isinstance(whole.shared, Lock) and one.barrier_ref_s is not None:
        raise value.wrong(f"{value.path} gives lock and barrier_s: remove one")
    given = {
        "requests": whole.requests is not None,
        "threads": isinstance(whole.shared, Threads),
        "io": one.io is not None,
        "work_refcore_s": one.work_ref_s is not None,
        "barrier_s": one.barrier_ref_s is not None,
        "lock": isinstance(whole.shared, Lock),
        "utilization": any(p.utilization_ratio < 1.0 for p in one.phases),
    }
    names = [name for name, present in given.items() if present]
    if len(names) > 1 and names[0] in ("requests", "threads", "io"):
        raise value.wrong(
            f"{value.path} gives {names[0]} and {names[1]}, but either of them decides when a vCPU "
            "wants a CPU: remove one"
        )


def _read(keys: Mapping[str, Value], topology: Topology) -> Workload:
    always = _phase(keys, topology, usual(topology).phases[0])
    phases = [always]
    if "phases" in keys:
        phases = []
        for item in keys["phases"].items("a list of phases"):
            fields = item.fields(("for_s", "speedup", "utilization", "ipc_ratio"), ("for_s",))
            phases.append(_phase(fields, topology, always))
        if not phases:
            raise keys["phases"].wrong(f"{keys['phases'].path} is empty: give a phase or null")
        follow = keys.get("phases_follow")
        if follow is None or follow.one_of(FOLLOW, "what phases follow") == "work":
            phases = [phase.by_work() for phase in phases]
    work, size = keys.get("work_refcore_s"), keys.get("working_set_bytes")
    return Workload(
        tuple(phases),
        work.number(0, above=True) if work else None,
        _barriers(keys["barrier_s"]) if "barrier_s" in keys else None,
        _by_type(keys["ipc"], topology) if "ipc" in keys else {},
        io=programs.io(keys["io"]) if "io" in keys else None,
        working_set_bytes=size.number(0, programs.BYTES_MOST) if size else 0.0,
    )


def _barriers(value: Value) -> float | tuple[float, ...]:
    """Work before a barrier, or before each of several in turn."""
    if not value.is_list:
        return value.number(STEP_MIN_S)
    found = []
    for item in value.items():
        found.append(item.number(0))
        if 0.0 < found[-1] < STEP_MIN_S:
            raise item.refused(f"0, or a number of at least {STEP_MIN_S:g}")
    if not any(found):
        raise value.wrong(f"{value.path} has no work: give a number above 0, or null")
    return tuple(found)


def _phase(keys: Mapping[str, Value], topology: Topology, usual: Phase) -> Phase:
    speeds, utilization, for_s = keys.get("speedup"), keys.get("utilization"), keys.get("for_s")
    ipc_ratio = keys.get("ipc_ratio")
    return Phase(
        _speeds(speeds, topology) if speeds else usual.speeds,
        utilization.number(0, 1) if utilization else usual.utilization_ratio,
        for_s.number(STEP_MIN_S) if for_s else usual.for_s,
        ipc_ratio.number(RATE_LEAST, RATE_MOST) if ipc_ratio else usual.ipc_ratio,
    )


def _coefficients(topology: Topology) -> tuple[float, ...]:
    """Speeds of a workload that gains exactly what the coefficients say."""
    known = [t.coefficient or 1.0 for t in topology.core_types]
    return tuple(c / known[0] for c in known)


def _by_type(value: Value, topology: Topology) -> dict[str, float]:
    """Numbers by core type."""
    types = [t.name for t in topology.core_types]
    found = {}
    for key, number in value.entries("a mapping of core types to numbers").items():
        if key not in types:
            raise number.wrong(
                f"{value.path} names core type '{key}', which is not on this host: "
                f"it has {', '.join(types)}"
            )
        found[key] = number.number(RATE_LEAST, RATE_MOST)
    return found


def _speeds(value: Value, topology: Topology) -> tuple[float, ...]:
    """Speeds on every core type over the slowest, which may be left out."""
    given = _by_type(value, topology)
    slowest = topology.core_types[0].name
    if not given:
        return _coefficients(topology)
    if given.get(slowest, 1.0) != 1.0:
        raise value.wrong(
            f"{value.path} is {given[slowest]:g} on '{slowest}', but speeds are relative to that "
            "type, the slowest: give 1 or leave it out"
        )
    for core_type in topology.core_types[1:]:
        if core_type.name not in given:
            raise value.wrong(f"{value.path} has no '{core_type.name}': add it")
    return tuple(given.get(t.name, 1.0) for t in topology.core_types)


CYCLE_S = 0.1
"""Length of one cycle of running and sleeping."""


@dataclass(frozen=True, slots=True)
class Turn:
    """From ``at_s`` on: whether the guest wants pCPUs, and its speed on each core type."""

    at_s: float
    wants: bool
    speeds: tuple[float, ...]
    ipc_ratio: float = 1.0


def turns(phases: Sequence[Phase], shift_s: float = 0.0) -> Iterator[Turn]:
    """All turns of phases that follow the clock, in order of time, from 0.

    ``shift_s`` is where in its cycle of running and sleeping the guest starts.
    """
    lasts_s = math.fsum(p.for_s for p in phases)
    rounds = 0
    while True:
        start = rounds * lasts_s if rounds else 0.0
        for phase in phases:
            yield from turns_of(phase, start, shift_s)
            if phase.for_s == math.inf:
                return
            start += phase.for_s
        rounds += 1


def turns_of(phase: Phase, start_s: float, shift_s: float) -> Iterator[Turn]:
    """The turns of one phase, which starts at ``start_s`` and lasts for its ``for_s``."""
    wanted = phase.utilization_ratio
    if wanted in (0.0, 1.0):
        yield Turn(start_s, bool(wanted), phase.speeds, phase.ipc_ratio)
        return
    end_s = start_s + phase.for_s
    cycle = math.floor((start_s + shift_s) / CYCLE_S)
    at_s = start_s
    while at_s < end_s:
        # Multiplied rather than added up, so that the pattern does not drift in long runs.
        sleeps_s = (cycle + wanted) * CYCLE_S - shift_s
        if at_s < sleeps_s:
            yield Turn(at_s, True, phase.speeds, phase.ipc_ratio)
            at_s = sleeps_s
        if at_s < end_s:
            yield Turn(at_s, False, phase.speeds, phase.ipc_ratio)
        cycle += 1
        at_s = max(at_s, cycle * CYCLE_S - shift_s)
