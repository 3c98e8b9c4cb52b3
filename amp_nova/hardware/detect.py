"""From what a machine says about its CPUs to its core types.

A core type is one design at one speed class. The sources form a ladder; a higher rung wins:

1. the operator's configuration,
2. Intel's PMU lists (``cpu_core``, ``cpu_atom``, ``cpu_lowpower``): the kernel asked each CPU,
3. ``cpu_capacity``: speed, as the kernel declares it,
4. ACPI CPPC ``highest_perf``: speed, as the firmware declares it (a mere ranking on AMD),
5. the CPU's model: says which designs there are, seldom which is faster,
6. cpufreq: says what is clocked higher, and compares nothing but cores of one design.

Rungs 2 and 5 divide the CPUs by design, ``hardware.speed_classes`` then divides a design by the
others. Types are put slowest first by rank (2), capacity, CPPC, frequency. Whatever the sources
leave open is not guessed: ``TopologyUnknown`` names what was seen and the way out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from amp_nova.exceptions import TopologyUnknown
from amp_nova.hardware import coefficients, designs, operator_types, speed_classes
from amp_nova.hardware.designs import Design
from amp_nova.hardware.facts import CpuFacts, MachineFacts
from amp_nova.hardware.operator_types import ConfiguredType
from amp_nova.model import cpulist
from amp_nova.model.topology import CoreType, PCpu, Topology

REMEDY = "name the core types in [topology] core_type"


@dataclass(frozen=True, slots=True)
class Group:
    """CPUs that are one core type."""

    name: str
    cpus: tuple[CpuFacts, ...]
    design: Design | None = None


@dataclass(frozen=True, slots=True)
class Division:
    """All online CPUs in groups, slowest first."""

    groups: tuple[Group, ...]
    source: str
    warnings: tuple[str, ...] = ()


def classify(
    facts: MachineFacts, lines: Sequence[ConfiguredType] = (), reference: str | None = None
) -> Topology:
    """The core types of a machine.

    Args:
        facts: what the machine says.
        lines: the operator's core types; they win over everything that is detected.
        reference: name of the reference core if it is not this machine's slowest type.

    Raises:
        TopologyUnknown: the facts do not tell the core types, or contradict each other.
        ConfigInvalid: the operator's core types are not those of this machine.
    """
    online = tuple(c for c in facts.cpus if c.online)
    if not online:
        raise TopologyUnknown("no online CPU was found; the root must hold sys/devices/system/cpu")
    if lines:
        division = _configured(facts, online, lines, reference)
        reference = operator_types.reference(lines, [g.name for g in division.groups], reference)
    else:
        division = _detect(facts, online)
    types = tuple(
        CoreType(g.name, threads_per_core=_threads(g.cpus, online)) for g in division.groups
    )
    topology = Topology(
        core_types=types,
        pcpus=tuple(sorted(_pcpus(division.groups, online), key=lambda p: p.id)),
        reference=reference or types[0].name,
        source=division.source,
        offline=tuple(sorted(c.id for c in facts.cpus if not c.online)),
        warnings=facts.warnings + division.warnings,
    )
    members = {g.name: g.cpus for g in division.groups}
    return coefficients.declare(topology, members, lines)


def _detect(facts: MachineFacts, online: tuple[CpuFacts, ...]) -> Division:
    by_design, warnings = _by_design(facts, online)
    hybrid = any(map(designs.sold_as_hybrid, online))
    capacity_counts = speed_classes.differs(online, speed_classes.capacity)
    several = len(by_design) > 1
    groups: list[Group] = []
    sources: list[str] = []
    taken = frozenset(d.name for d in by_design if d is not None)
    for design, cpus in by_design.items():
        found = speed_classes.classes(cpus, capacity_counts)
        stem = design.name if design is not None and (design.named or several) else ""
        names = designs.class_names(stem, len(found.members), hybrid, taken - {stem})
        groups += [Group(n, m, design) for n, m in zip(names, found.members, strict=True)]
        if found.disputed:
            divided = len(found.members) > 1 or bool(facts.pmus)
            if found.reversed or (hybrid and not divided):
                raise TopologyUnknown(f"{found.disputed}; {REMEDY}")
            warnings.append(f"{found.disputed}; if they differ in speed, {REMEDY}")
        sources += [s for s in (design.origin if design and several else None, found.source) if s]
    if len(groups) == 1:
        return Division(tuple(groups), _alike(facts, online), (*warnings, *_alone(facts, online)))
    ordered, by = _order(groups, bool(facts.pmus))
    _must_agree(ordered)
    sources = [_pmus(facts) if s == "PMU lists" else s for s in dict.fromkeys([*sources, *by])]
    return Division(tuple(ordered), ", ".join(sources), tuple(warnings))


def _by_design(
    facts: MachineFacts, online: tuple[CpuFacts, ...]
) -> tuple[dict[Design | None, tuple[CpuFacts, ...]], list[str]]:
    """The online CPUs by design; ``None`` stands for the design of CPUs that do not say."""
    pmus = [(n, found) for n, ids in facts.pmus if (found := ids & {c.id for c in online})]
    if pmus:
        _must_partition(pmus, online)
        return {designs.of_pmu(n): tuple(c for c in online if c.id in ids) for n, ids in pmus}, []
    by_model: dict[Design | None, tuple[CpuFacts, ...]] = {}
    for cpu in online:
        design = designs.of_cpu(cpu)
        by_model[design] = (*by_model.get(design, ()), cpu)
    if None not in by_model or len(by_model) == 1:
        return by_model, []
    silent = f"pCPUs {_ids(by_model.pop(None))} do not say their CPU model"
    if len(by_model) > 1:
        raise TopologyUnknown(f"{silent}, and the others are of several; {REMEDY}")
    return {next(iter(by_model)): online}, [f"{silent}: taken to be that of the others"]


def _must_partition(pmus: list[tuple[str, frozenset[int]]], online: tuple[CpuFacts, ...]) -> None:
    for (one, mine), (other, theirs) in combinations(pmus, 2):
        if both := mine & theirs:
            raise TopologyUnknown(
                f"pCPUs {cpulist.show(both)} are in the PMU lists of {one} and of {other}; {REMEDY}"
            )
    listed = frozenset[int]().union(*(ids for _, ids in pmus))
    if left := {c.id for c in online} - listed:
        names = " and ".join(n for n, _ in pmus)
        raise TopologyUnknown(
            f"online pCPUs {cpulist.show(left)} are not in the PMU lists ({names}); {REMEDY}"
        )


def _alone(facts: MachineFacts, online: tuple[CpuFacts, ...]) -> list[str]:
    """Check that a machine on which one core type was found may have one only."""
    sold = any(map(designs.sold_as_hybrid, online))
    readings = (speed_classes.capacity, speed_classes.perf, speed_classes.max_freq)
    silent = not any(speed_classes.known(online, r) for r in readings[1:])
    if facts.pmus:
        sold = True
    elif any(c.hybrid for c in online) or (sold and silent and not online[0].virtual):
        raise TopologyUnknown(
            f"the CPU is hybrid, but nothing says which of pCPUs {_ids(online)} are P- and which "
            f"are E-cores; {REMEDY}"
        )
    elif sold and silent:
        return [
            "this virtual machine may run on P- and E-cores, which cannot be told apart from inside"
        ]
    offline = [c.id for c in facts.cpus if not c.online]
    if sold and offline:
        warning = (
            f"pCPUs {cpulist.show(offline)} are offline and may be of another core type: set "
            "[topology] reference so that coefficients do not change when they come back"
        )
        return [warning]
    return []


def _order(groups: list[Group], by_pmu: bool) -> tuple[list[Group], list[str]]:
    """Slowest first, and the sources that say so."""
    cpus = [c for g in groups for c in g.cpus]
    several = len({g.design for g in groups}) > 1
    readings = []
    if speed_classes.differs(cpus, speed_classes.capacity):
        readings.append(("cpu_capacity", speed_classes.capacity))
    if speed_classes.differs(cpus, speed_classes.perf) and not (
        several and speed_classes.ranked(cpus)
    ):
        readings.append(("ACPI CPPC highest_perf", speed_classes.perf))
    by_rank = by_pmu or (several and not readings and _ranks_differ(groups))
    if several and not readings and not by_rank:
        seen = "; ".join(f"{g.name} on pCPUs {_ids(g.cpus)}" for g in groups)
        raise TopologyUnknown(f"nothing says which core type is faster ({seen}); {REMEDY}")
    if speed_classes.known(cpus, speed_classes.max_freq):
        readings.append(("cpufreq", speed_classes.max_freq))

    def key(group: Group) -> tuple[float | str, ...]:
        rank = group.design.rank if by_rank and group.design else None
        name = group.design.name if group.design else ""
        return (rank or 0, *(speed_classes.lowest(group.cpus, r) for _, r in readings), name)

    leading = [] if by_rank or not several else [readings[0][0]]
    return sorted(groups, key=key), leading


def _ranks_differ(groups: list[Group]) -> bool:
    ranks = {g.design: g.design.rank for g in groups if g.design is not None}
    return None not in ranks.values() and len(set(ranks.values())) == len(ranks)


def _must_agree(ordered: list[Group]) -> None:
    """Refuse an order that another source contradicts by more than what favoured cores differ."""
    cpus = [c for g in ordered for c in g.cpus]
    for slow, fast in combinations(ordered, 2):
        one_design = slow.design is not None and slow.design == fast.design
        readings = (
            {"cpu_capacity": speed_classes.capacity}
            if speed_classes.differs(cpus, speed_classes.capacity)
            else {}
        )
        if speed_classes.known(cpus, speed_classes.perf) and not speed_classes.ranked(cpus):
            readings["ACPI CPPC highest_perf"] = speed_classes.perf
        if one_design and speed_classes.known(cpus, speed_classes.max_freq):
            readings["cpufreq"] = speed_classes.max_freq
        for source, reading in readings.items():
            low, high = (
                speed_classes.lowest(slow.cpus, reading),
                speed_classes.lowest(fast.cpus, reading),
            )
            if low >= high * speed_classes.SPEED_GAP:
                raise TopologyUnknown(
                    f"{source} says that {slow.name} (pCPUs {_ids(slow.cpus)}) is faster than "
                    f"{fast.name} ({low} against {high}), other sources say it is slower; {REMEDY}"
                )


def _configured(
    facts: MachineFacts,
    online: tuple[CpuFacts, ...],
    lines: Sequence[ConfiguredType],
    reference: str | None,
) -> Division:
    """The operator's types that have an online CPU, by coefficient, else by what is detected."""
    operator_types.check(lines, {c.id for c in facts.cpus}, {c.id for c in online})
    groups = [
        Group(line.name, members)
        for line in lines
        if (members := tuple(c for c in online if c.id in line.cpus))
    ]
    known = operator_types.known_coefficients(lines, reference)
    if all(g.name in known for g in groups):
        ordered = sorted(groups, key=lambda g: known[g.name])
    else:
        try:  # each line stands for a design of its own, so that frequencies are not compared
            ordered, _ = _order([replace(g, design=Design(g.name, "")) for g in groups], False)
        except TopologyUnknown:
            ordered = groups
    return Division(tuple(ordered), operator_types.SOURCE)


def _alike(facts: MachineFacts, online: tuple[CpuFacts, ...]) -> str:
    """What a single core type rests on."""
    if facts.pmus:
        return _pmus(facts)
    design = designs.of_cpu(online[0])
    readings = {
        "cpu_capacity": speed_classes.capacity,
        "ACPI CPPC highest_perf": speed_classes.perf,
        "cpufreq": speed_classes.max_freq,
    }
    seen = [design.origin] if design is not None else []
    seen += [name for name, reading in readings.items() if speed_classes.known(online, reading)]
    return "no clear difference in " + ", ".join(seen) if seen else "nothing tells the CPUs apart"


def _pmus(facts: MachineFacts) -> str:
    return "PMU lists " + ", ".join(name for name, _ in facts.pmus)


def _ids(cpus: Iterable[CpuFacts]) -> str:
    return cpulist.show(c.id for c in cpus)


def _cores(online: Iterable[CpuFacts]) -> dict[int, tuple[int, ...]]:
    """For every online CPU, the online hardware threads of its core."""
    by_core: dict[tuple[int, int], set[int]] = {}
    for cpu in online:
        if cpu.package is not None and cpu.core_id is not None:
            by_core.setdefault((cpu.package, cpu.core_id), set()).add(cpu.id)
    ids = {c.id for c in online}
    cores = {}
    for cpu in online:
        core = set(cpu.siblings)
        if not core and cpu.package is not None and cpu.core_id is not None:
            core = by_core[cpu.package, cpu.core_id]
        cores[cpu.id] = tuple(sorted((core & ids) | {cpu.id}))
    return cores


def _threads(cpus: Iterable[CpuFacts], online: Iterable[CpuFacts]) -> int:
    cores = _cores(online)
    return max(len(cores[c.id]) for c in cpus)


def _pcpus(groups: Iterable[Group], online: Iterable[CpuFacts]) -> Iterable[PCpu]:
    cores = _cores(online)
    for group in groups:
        for cpu in group.cpus:
            yield PCpu(cpu.id, group.name, cores[cpu.id], cpu.numa_node, cpu.llc, cpu.isolated)
