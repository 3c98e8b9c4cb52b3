# SPDX-License-Identifier: Apache-2.0
"""Packing by each vCPU's own coefficients, as far as capacity allows.

A vCPU whose work gains less from a core type than the hardware's coefficient says needs more of
such a core for the same speed. Admission uses the hardware's coefficients, so the host may not have
that much. Then every vCPU gets the share that admission assumed, and vCPUs that need more get an
equal part of their additional need from what is free.
"""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from types import MappingProxyType

from msgspec import structs

from amp_nova.admission import packing as packing_
from amp_nova.admission.packing import Demand, Packing
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import CoreType, Topology

PARTS = (1.0, 0.75, 0.5, 0.25)
"""The parts of the additional need that are tried in turn until all vCPUs fit."""
NONE: Mapping[str, float] = MappingProxyType({})


def bounded(own: Mapping[str, float], refcores: float, topology: Topology) -> dict[str, float]:
    """Own coefficients, raised until the booking needs no more than one whole core.

    If a core is fast enough for the booking by its hardware coefficient but not for this vCPU's
    work, the vCPU gets the whole core: there is nothing more to give.
    """
    raised = {}
    for core_type in topology.core_types:
        coefficient = own.get(core_type.name)
        if coefficient is not None and core_type.coefficient is not None:
            least = min(refcores, core_type.coefficient)
            raised[core_type.name] = max(coefficient, least)
    return raised


def pack(
    demands: Collection[Demand], topology: Topology, reserve_ratio: float
) -> tuple[Packing, Mapping[Hashable, Mapping[str, float]]]:
    """The packing, and the coefficients that apply to each vCPU that has its own."""
    own: dict[Hashable, Mapping[str, float]] = {
        d.key: d.coefficients for d in demands if d.coefficients
    }
    packing = packing_.pack(demands, topology, reserve_ratio, packing_.AGENT_STEPS_MAX)
    if packing.complete or not own:
        return packing, own
    admitted = [structs.replace(d, coefficients=NONE) for d in demands]
    packing = packing_.pack(admitted, topology, reserve_ratio, packing_.AGENT_STEPS_MAX)
    there = {k: t for k, p in packing.placed.items() if (t := topology.type_of(p)) is not None}
    for part in PARTS:
        eased = {
            d.key: _eased(d, there[d.key], part) for d in demands if d.key in there and d.key in own
        }
        tried = packing_.pack(
            [
                structs.replace(
                    d,
                    core_type=there[d.key].name,
                    current=there[d.key].name,
                    coefficients=eased.get(d.key, NONE),
                )
                for d in demands
                if d.key in there
            ],
            topology,
            reserve_ratio,
        )
        if tried.complete:
            return replace(tried, unplaced=packing.unplaced), eased
    return packing, {}


def trial(
    demands: Collection[Demand],
    packing: Packing,
    trials: Mapping[VcpuKey, str],
    topology: Topology,
    reserve_ratio: float,
) -> Packing:
    """The packing with one vCPU on the core type where it is to be measured, if there is room.

    No other vCPU gives way, and the one on trial stays until it has been measured or there is no
    room any more. ``trials``: the core types, by vCPU.
    """
    by_key = {d.key: d for d in demands}
    for key, name in trials.items() if packing.complete else ():
        demand = by_key.get(key)
        if demand is None or not demand.coefficients or demand.core_type is not None:
            continue
        moved = by_key | {key: structs.replace(demand, core_type=name)}
        tried = packing_.pack(list(moved.values()), topology, reserve_ratio)
        if tried.complete and tried.placed | {key: packing.placed[key]} == packing.placed:
            return tried
    return packing


def _eased(demand: Demand, core_type: CoreType, part: float) -> Mapping[str, float]:
    """The coefficient with which a vCPU gets ``part`` of its additional need."""
    least = packing_.cores(demand.refcores, core_type)
    whole = packing_.need_cores(demand, core_type)
    if least is None or whole is None:
        return NONE
    return {core_type.name: demand.refcores / (least + part * (whole - least))}
