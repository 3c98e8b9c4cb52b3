# SPDX-License-Identifier: Apache-2.0
"""Detects the core types of a machine from what it reports about its CPUs.

A core type is one speed class of one design. The sources, in order of precedence:

1. the operator's configuration,
2. Intel's PMU lists (``cpu_core``, ``cpu_atom``, ``cpu_lowpower``), for which the kernel queries
   each CPU,
3. ``cpu_capacity``: speed according to the kernel,
4. ACPI CPPC ``highest_perf``: speed according to the firmware (only a ranking on AMD),
5. the CPU's model: which designs there are, but seldom which one is faster,
6. cpufreq: comparable only between cores of one design.

Sources 2 and 5 divide the CPUs by design, and ``hardware.speed_classes`` divides each design by the
others. Types are ordered by the rank of their design (2), by capacity, CPPC, and frequency. If the
sources leave a question open, ``TopologyUnknown`` names what was found and asks the operator to
declare the core types.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from amp_nova.exceptions import TopologyUnknown
from amp_nova.hardware import coefficients, designs, operator_types, speed_classes
from amp_nova.hardware.designs import PMU_DESIGNS, CpuFacts, Design, MachineFacts
from amp_nova.hardware.operator_types import ConfiguredType
from amp_nova.hardware.speed_classes import CAPACITY, MAX_FREQ, PERF, SPEED_GAP
from amp_nova.model import cpulist
from amp_nova.model.topology import CoreType, PCpu, Topology

REMEDY = "name the core types in [topology] core_type"


@dataclass(frozen=True, slots=True)
class CpuGroup:
    """The CPUs of one core type."""

    name: str
    cpus: tuple[CpuFacts, ...]
    design: Design | None = None


@dataclass(frozen=True, slots=True)
class Division:
    """All online CPUs in groups, slowest first."""

    groups: tuple[CpuGroup, ...]
    source: str
    warnings: tuple[str, ...] = ()
    incomplete: bool = False


def classify(
    facts: MachineFacts, lines: Sequence[ConfiguredType] = (), reference: str | None = None
) -> Topology:
    """The core types of a machine.

    Args:
        facts: what the machine reports.
        lines: the operator's core types, which replace everything that is detected.
        reference: core type of the reference core if that is not this machine's slowest type.

    Raises:
        TopologyUnknown: the facts are insufficient or contradict each other.
        ConfigInvalid: the operator's core types do not match this machine.
    """
    online = tuple(c for c in facts.cpus if c.online)
    if not online:
        raise TopologyUnknown("no online CPU was found; the root must hold sys/devices/system/cpu")
    if lines:
        division = _configured(facts, online, lines, reference)
        reference = operator_types.reference(lines, [g.name for g in division.groups], reference)
    else:
        division = _detect(facts, online)
    pcpus = _pcpus(division.groups)
    threads = {
        g.name: max(len(p.siblings) for p in pcpus if p.core_type == g.name)
        for g in division.groups
    }
    topology = Topology(
        core_types=tuple(CoreType(name, threads_per_core=n) for name, n in threads.items()),
        pcpus=pcpus,
        reference=reference or division.groups[0].name,
        source=division.source,
        offline=tuple(sorted(c.id for c in facts.cpus if not c.online)),
        warnings=facts.warnings + division.warnings,
        incomplete=division.incomplete,
        one_type=len({c.model.part for c in online if c.model.implementer is not None}) > 1,
    )
    members = {g.name: g.cpus for g in division.groups}
    return coefficients.declare(topology, members, lines)


def _detect(facts: MachineFacts, online: tuple[CpuFacts, ...]) -> Division:
    by_design, warnings = _by_design(facts, online)
    hybrid = any(map(designs.sold_as_hybrid, online))
    use_capacity = CAPACITY.differs(online)
    several, incomplete = len(by_design) > 1, False
    groups: list[CpuGroup] = []
    sources: list[str] = []
    taken = frozenset(d.name for d in by_design if d is not None)
    for design, cpus in by_design.items():
        classes = speed_classes.classes(cpus, use_capacity)
        stem = design.name if design is not None and (design.named or several) else ""
        names = designs.class_names(stem, len(classes.members), hybrid, taken - {stem})
        groups += [CpuGroup(n, m, design) for n, m in zip(names, classes.members, strict=True)]
        if classes.disputed:
            is_divided = len(classes.members) > 1 or bool(facts.pmus)
            if classes.reversed or (hybrid and not is_divided):
                raise TopologyUnknown(f"{classes.disputed}; {REMEDY}")
            warnings.append(f"{classes.disputed}; if they differ in speed, {REMEDY}")
        for members in classes.members:
            if not classes.disputed and (spread := speed_classes.uneven(members)):
                warnings.append(f"{spread}; if they differ in speed, {REMEDY}")
        if missing := speed_classes.incomplete(cpus):
            sentence, divides = missing
            if divides and len(classes.members) == 1:
                raise TopologyUnknown(f"{sentence}; {REMEDY}")
            remedy = f"; if they differ in speed, {REMEDY}" if len(classes.members) == 1 else ""
            warnings.append(f"{sentence}{remedy}")
            incomplete = True
        sources += [s for s in (design.origin if design and several else None, classes.source) if s]
    if len(groups) == 1:
        warnings += _check_single(facts, online)
        return Division(tuple(groups), _single_source(facts, online), tuple(warnings), incomplete)
    ordered, by = _order(groups, bool(facts.pmus))
    _check_order(ordered)
    sources = [_pmus(facts) if s == "PMU lists" else s for s in dict.fromkeys([*sources, *by])]
    return Division(tuple(ordered), ", ".join(sources), tuple(warnings), incomplete)


def _by_design(
    facts: MachineFacts, online: tuple[CpuFacts, ...]
) -> tuple[dict[Design | None, tuple[CpuFacts, ...]], list[str]]:
    """The online CPUs by design, ``None`` if no CPU identifies itself; and warnings."""
    pmus = [(n, listed) for n, ids in facts.pmus if (listed := ids & {c.id for c in online})]
    if pmus:
        _check_partition(pmus, online)
        return {
            Design(PMU_DESIGNS[n][0], "PMU lists", PMU_DESIGNS[n][1]): tuple(
                c for c in online if c.id in ids
            )
            for n, ids in pmus
        }, []
    by_model: dict[Design | None, tuple[CpuFacts, ...]] = {}
    for cpu in online:
        design = designs.of_cpu(cpu)
        by_model[design] = (*by_model.get(design, ()), cpu)
    if None not in by_model or len(by_model) == 1:
        return by_model, []
    unnamed = by_model.pop(None)
    silent = f"pCPUs {_ids(unnamed)} do not report their CPU model"
    if len(by_model) > 1:
        raise TopologyUnknown(f"{silent}, and the others are of several models; {REMEDY}")
    (named,) = by_model.values()
    like = [{(c.package, c.cluster, c.speeds.capacity) for c in cpus} for cpus in (unnamed, named)]
    if like[0] - like[1]:
        raise TopologyUnknown(f"{silent} and differ in package, cluster or capacity; {REMEDY}")
    return {next(iter(by_model)): online}, [f"{silent}; they are assumed to be like the others"]


def _check_partition(pmus: list[tuple[str, frozenset[int]]], online: tuple[CpuFacts, ...]) -> None:
    for (one, first), (other, second) in combinations(pmus, 2):
        if both := first & second:
            raise TopologyUnknown(
                f"pCPUs {cpulist.show(both)} are in the PMU lists of {one} and of {other}; {REMEDY}"
            )
    listed = frozenset[int]().union(*(ids for _, ids in pmus))
    if missing := {c.id for c in online} - listed:
        names = " and ".join(n for n, _ in pmus)
        raise TopologyUnknown(
            f"online pCPUs {cpulist.show(missing)} are not in the PMU lists ({names}); {REMEDY}"
        )


def _check_single(facts: MachineFacts, online: tuple[CpuFacts, ...]) -> list[str]:
    """Warnings about a machine with one detected core type; raises if there must be more."""
    sold = any(map(designs.sold_as_hybrid, online))
    silent = not (PERF.known(online) or MAX_FREQ.known(online))
    virtual = online[0].model.virtual
    if facts.pmus:
        sold = True
    elif any(c.model.hybrid for c in online) or (sold and silent and not virtual):
        raise TopologyUnknown(
            f"the CPU is hybrid, but nothing says which of pCPUs {_ids(online)} are P-cores and "
            f"which are E-cores; {REMEDY}"
        )
    elif sold and (silent or virtual):
        return ["this virtual machine may run on P- and E-cores, which it cannot tell apart"]
    offline = [c.id for c in facts.cpus if not c.online]
    if sold and offline:
        warning = (
            f"pCPUs {cpulist.show(offline)} are offline and may be of another core type: set "
            "[topology] reference so that coefficients do not change when they come back"
        )
        return [warning]
    return []


def _order(groups: list[CpuGroup], by_pmu: bool) -> tuple[list[CpuGroup], list[str]]:
    """The groups, slowest first, and the source of the order if it is not listed already."""
    cpus = [c for g in groups for c in g.cpus]
    several = len({g.design for g in groups}) > 1
    sources = [CAPACITY] if CAPACITY.differs(cpus) else []
    if PERF.differs(cpus) and not (several and speed_classes.ranked(cpus)):
        sources.append(PERF)
    ranks = {g.design: g.design.rank for g in groups if g.design is not None}
    ranked = None not in ranks.values() and len(set(ranks.values())) == len(ranks)
    by_rank = by_pmu or (several and not sources and ranked)
    if several and not sources and not by_rank:
        layout = "; ".join(f"{g.name} on pCPUs {_ids(g.cpus)}" for g in groups)
        raise TopologyUnknown(f"nothing says which core type is faster ({layout}); {REMEDY}")
    named = [] if by_rank or not several else [sources[0].name]
    if MAX_FREQ.known(cpus):
        sources.append(MAX_FREQ)

    def key(group: CpuGroup) -> tuple[float | str, ...]:
        rank = group.design.rank if by_rank and group.design else None
        name = group.design.name if group.design else ""
        return (rank or 0, *(s.lowest(group.cpus) for s in sources), name)

    return sorted(groups, key=key), named


def _check_order(ordered: list[CpuGroup]) -> None:
    """Raise if a source contradicts the order by more than the margin of favoured cores."""
    cpus = [c for g in ordered for c in g.cpus]
    sources = [CAPACITY] if CAPACITY.differs(cpus) else []
    sources += [PERF] if PERF.known(cpus) and not speed_classes.ranked(cpus) else []
    for slow, fast in combinations(ordered, 2):
        one_design = slow.design is not None and slow.design == fast.design
        comparable = [MAX_FREQ] if one_design and MAX_FREQ.known(cpus) else []
        for source in sources + comparable:
            low, high = source.lowest(slow.cpus), source.lowest(fast.cpus)
            if low >= high * SPEED_GAP:
                raise TopologyUnknown(
                    f"{source.name} says that {slow.name} (pCPUs {_ids(slow.cpus)}) is faster than "
                    f"{fast.name} ({low} against {high}), other sources say it is slower; {REMEDY}"
                )


def _configured(
    facts: MachineFacts,
    online: tuple[CpuFacts, ...],
    lines: Sequence[ConfiguredType],
    reference: str | None,
) -> Division:
    """The operator's types that have an online CPU, ordered by coefficient or else by detection."""
    operator_types.check(lines, {c.id for c in facts.cpus}, {c.id for c in online})
    groups = [
        CpuGroup(line.name, members)
        for line in lines
        if (members := tuple(_of_line(c, line) for c in online if c.id in line.cpus))
    ]
    declared = operator_types.known_coefficients(lines, reference)
    if all(g.name in declared for g in groups):
        groups.sort(key=lambda g: declared[g.name])
    else:
        try:  # treat each line as a separate design, so that frequencies are not compared
            groups, _ = _order([replace(g, design=Design(g.name, "")) for g in groups], False)
        except TopologyUnknown:
            pass  # keep the operator's order
    return Division(tuple(groups), operator_types.SOURCE)


def _of_line(cpu: CpuFacts, line: ConfiguredType) -> CpuFacts:
    """A CPU, with the hardware threads of its core that the operator declares, if any."""
    if line.threads is None:
        return cpu
    first = line.cpus.index(cpu.id) // line.threads * line.threads
    return replace(cpu, siblings=line.cpus[first : first + line.threads])


def _single_source(facts: MachineFacts, online: tuple[CpuFacts, ...]) -> str:
    """Why the machine counts as having a single core type."""
    if facts.pmus:
        return _pmus(facts)
    design = designs.of_cpu(online[0])
    names = [design.origin] if design is not None else []
    names += [source.name for source in (CAPACITY, PERF, MAX_FREQ) if source.known(online)]
    return "no clear difference in " + ", ".join(names) if names else "nothing tells the CPUs apart"


def _pmus(facts: MachineFacts) -> str:
    return "PMU lists " + ", ".join(name for name, _ in facts.pmus)


def _ids(cpus: Iterable[CpuFacts]) -> str:
    return cpulist.show(c.id for c in cpus)


def _pcpus(groups: Sequence[CpuGroup]) -> tuple[PCpu, ...]:
    """The online CPUs, each with the online threads of its core, which any of them may name."""
    by_core: dict[tuple[int, int], set[int]] = {}
    online = [cpu for group in groups for cpu in group.cpus]
    for cpu in online:
        if cpu.package is not None and cpu.core_id is not None:
            by_core.setdefault((cpu.package, cpu.core_id), set()).add(cpu.id)
    ids = {c.id for c in online}
    threads: dict[int, set[int]] = {i: set() for i in ids}
    for cpu in online:
        core = set(cpu.siblings)
        if not core and cpu.package is not None and cpu.core_id is not None:
            core = by_core[cpu.package, cpu.core_id]
        core = core & ids | {cpu.id}
        for thread in core:
            threads[thread] |= core
    by_id = {}
    for group in groups:
        for cpu in group.cpus:
            siblings = tuple(sorted(threads[cpu.id]))
            by_id[cpu.id] = PCpu(cpu.id, group.name, siblings, cpu.llc, cpu.isolated)
    return tuple(by_id[i] for i in sorted(by_id))
