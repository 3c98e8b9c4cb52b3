# SPDX-License-Identifier: Apache-2.0
"""Speeds, for admission, control, accounting and policies alike.

The last functions compare core types of one host: speeds are relative to its slowest type there.

A coefficient holds for a core at its calibrated clock whose other hardware threads are idle. A
thread whose sibling runs keeps ``smt_busy_factor`` of its speed, and a core below its calibrated
clock keeps the ratio of the two::

    effective speed = coefficient x (1 - q (1 - smt_busy_factor)) x clock ratio

where ``q`` is the share of the thread's running time in which a sibling ran: the measured share in
accounting, and 1 (the worst case) in admission.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from amp_nova.model.topology import CoreType, Topology

SMT_MODES = ("shared", "whole_core", "ignore")
"""How bookings share the hardware threads of a core; see ``[agent] smt``."""


def kept_ratio(smt_busy_factor: float | None, busy_ratio: float, clock_ratio: float = 1.0) -> float:
    """The part of its coefficient that a pCPU keeps.

    ``smt_busy_factor``: as in ``CoreType``; ``None`` (unknown) counts as no loss; ``busy_ratio``:
    the share of its running time in which a sibling ran, 0 to 1; ``clock_ratio``: its clock over
    the calibrated one.
    """
    lost = 0.0 if smt_busy_factor is None else max(0.0, 1.0 - smt_busy_factor)
    return (1.0 - busy_ratio * lost) * clock_ratio


def effective_speed(core_type: CoreType, busy_ratio: float = 0.0) -> float | None:
    """Speed of a pCPU over the reference core; ``None`` if its type has no coefficient."""
    if core_type.coefficient is None:
        return None
    return core_type.coefficient * kept_ratio(core_type.smt_busy_factor, busy_ratio)


def slowed_by_siblings(core_type: CoreType) -> bool:
    """Whether it matters for a thread of these cores what runs beside it."""
    return kept_ratio(core_type.smt_busy_factor, 1.0) < 1.0


def slowing_siblings(topology: Topology) -> Mapping[int, tuple[int, ...]]:
    """The siblings of each pCPU that slow it down; empty on a host without any."""
    slowed = {t.name for t in topology.core_types if slowed_by_siblings(t)}
    if not slowed:
        return {}
    siblings_of = {
        p.id: topology.siblings_of(p.id) for p in topology.pcpus if p.core_type in slowed
    }
    return {pcpu: siblings for pcpu, siblings in siblings_of.items() if siblings}


def for_admission(topology: Topology, smt: str) -> Topology:
    """The topology by which bookings are packed under one of ``SMT_MODES``.

    With ``ignore`` a busy sibling costs nothing; with ``whole_core`` a thread with a busy sibling
    is worth nothing, even if the real cost is unknown.
    """
    if smt == "shared" or all(t.threads_per_core == 1 for t in topology.core_types):
        return topology
    factor = None if smt == "ignore" else 0.0
    types = tuple(
        t if t.threads_per_core == 1 else replace(t, smt_busy_factor=factor)
        for t in topology.core_types
    )
    return replace(topology, core_types=types)


def bookable_refcores(topology: Topology, pcpus: frozenset[int]) -> dict[str, float]:
    """The most that can be booked on these pCPUs, by core type, in reference cores.

    Core types without a coefficient are left out.
    """
    slowed = slowing_siblings(topology)
    if not slowed:
        return {
            t.name: t.coefficient * len(pcpus & topology.pcpus_of(t.name))
            for t in topology.core_types
            if t.coefficient is not None
        }
    refcores = {t.name: 0.0 for t in topology.core_types if t.coefficient is not None}
    for pcpu in pcpus:
        core_type = topology.type_of(pcpu)
        if core_type is None or core_type.coefficient is None:
            continue
        refcores[core_type.name] += thread_of_empty_core(core_type, 1 + len(slowed.get(pcpu, ())))
    return refcores


def thread_of_empty_core(core_type: CoreType, threads: int) -> float:
    """What one of the ``threads`` of a core without bookings adds to what can be booked on it.

    In reference cores; 0 without a coefficient. A core counts as all its threads running at once or
    as one thread running alone, whichever is more.
    """
    shared = effective_speed(core_type, 1.0 if threads > 1 else 0.0) or 0.0
    return max(shared, (core_type.coefficient or 0.0) / threads)


def gain(types: tuple[CoreType, ...], at: int) -> float | None:
    """The coefficient of the core type at ``at`` over the slowest's; ``None`` if unknown."""
    here, slowest = types[at].coefficient, types[0].coefficient
    return here / slowest if here is not None and slowest else None


def speed(types: tuple[CoreType, ...], at: int, speedup: float) -> float:
    """The speed, on the core type at ``at``, of a workload with ``speedup`` on the fastest type.

    For the types in between it is interpolated linearly by coefficient or, if coefficients are
    unknown, by position.
    """
    if at == 0:
        return 1.0
    last = len(types) - 1
    height = at / last
    if at < last:
        here, most = gain(types, at), gain(types, last)
        if here is not None and most is not None and most > 1.0:
            height = (here - 1.0) / (most - 1.0)
    return 1.0 + (speedup - 1.0) * height


def alone_shares(pcpus: Sequence[int], vcpus: float) -> tuple[float, ...]:
    """Time of each of an instance's vCPUs on each core type if it were alone on the host.

    The vCPUs take the fastest pCPUs, and take turns if there are more vCPUs than pCPUs
    (saez2015, section 2.1: "alone in the AMP, with all the big cores available").

    ``pcpus``: how many of each core type they may use, slowest type first; ``vcpus``: how many of
    them run at a time. The sum is below 1 if there are more of these than pCPUs. If no pCPU is
    online, all the time counts as spent on the slowest type.
    """
    if not any(pcpus):
        return (1.0, *(0.0 for _ in pcpus[1:]))
    shares, left = [], vcpus
    for count in reversed(pcpus):
        taken = min(float(count), left)
        shares.append(taken / vcpus)
        left -= taken
    return tuple(reversed(shares))


def speed_over(types: tuple[CoreType, ...], shares: Sequence[float], speedup: float) -> float:
    """Mean speed of a workload with ``speedup`` that has these shares of time on each core type."""
    return math.fsum([share * speed(types, at, speedup) for at, share in enumerate(shares)])


def running_at_a_time(demands: Sequence[float]) -> float:
    """How many of an instance's vCPUs run at a time, from each one's demand in the same time.

    vCPUs with equal demand count fully; one that hardly ever wants to run counts little.
    """
    most = max(demands, default=0.0)
    return math.fsum(demands) / most if most > 0.0 else 1.0
