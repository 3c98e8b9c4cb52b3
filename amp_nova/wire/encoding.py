"""The host report as JSON text.

pCPU lists are in the kernel's format (``0-3,8``), and unknown values are left out. A reader ignores
keys that it does not know, and rejects a report with any invalid value as a whole.
"""

import functools
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs
from msgspec.structs import force_setattr

from amp_nova.exceptions import ReportInvalid
from amp_nova.model import cpulist
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.wire.host_report import (
    ITEMS_MAX,
    NAME_MAX,
    Count,
    HostReport,
    Name,
    Origin,
    ReportedInstance,
    Text,
    pcpus_of,
)

VERSION = 2
"""Raised only when an older reader would misinterpret a report; new keys do not raise it."""
CHARACTERS_MAX = 1 << 20
"""Longest report accepted: 1500 instances of 8 booked vCPUs take half of it."""


class _CoreType(Struct, omit_defaults=True, frozen=True):
    name: Name
    coefficient: Annotated[float, Meta(ge=1e-3, le=1e3)] | None = None
    nominal_ips: Annotated[float, Meta(ge=1e3, le=1e15)] | None = None
    pcpus: str = ""
    smt_busy_factor: Annotated[float, Meta(ge=0, le=10)] | None = None
    siblings: tuple[str, ...] = ()
    """The pCPUs of each core with several hardware threads, where these slow each other down."""


class _Topology(Struct, omit_defaults=True, frozen=True):
    core_types: Annotated[tuple[_CoreType, ...], Meta(min_length=1)]
    reference: Text = ""
    source: Text = ""
    offline: str = ""


class _Group(Struct, array_like=True):
    """Instances of one flavor and image."""

    flavor: Text
    image: Text
    instances: Annotated[tuple[ReportedInstance, ...], Meta(max_length=ITEMS_MAX)]


class _Host(Struct, omit_defaults=True):
    version: Count
    origin: Origin
    topology: _Topology
    bookable: str = ""
    reserve_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.0
    groups: tuple[_Group, ...] = ()
    policy: Text = "none"
    counters: Text | None = None
    healthy: bool = True
    problems: tuple[str, ...] = ()


class _Version(Struct):
    version: Count


_version = msgspec.json.Decoder(_Version)
_host = msgspec.json.Decoder(_Host)


def encode(report: HostReport) -> str:
    """The JSON text of a report."""
    host = _Host(
        VERSION,
        report.origin,
        _topology_out(report.topology),
        cpulist.show(report.bookable),
        report.reserve_ratio,
        _groups(report.instances),
        report.policy,
        report.counters,
        report.healthy,
        report.problems,
    )
    return msgspec.json.encode(host).decode()


def _groups(instances: Iterable[ReportedInstance]) -> tuple[_Group, ...]:
    found: dict[tuple[str, str], list[ReportedInstance]] = {}
    for instance in instances:
        found.setdefault((instance.flavor, instance.image), []).append(instance)
    return tuple(
        _Group(*key, tuple(structs.replace(i, flavor="", image="") for i in members))
        for key, members in found.items()
    )


def _instances(groups: Iterable[_Group]) -> Iterator[ReportedInstance]:
    """The instances, completed in place. Strings that recur in a cloud are shared."""
    for group in groups:
        flavor, image = sys.intern(group.flavor), sys.intern(group.image)
        for instance in group.instances:
            force_setattr(instance, "flavor", flavor)
            force_setattr(instance, "image", image)
            for vcpu in instance.vcpus:
                if vcpu.core_type is not None:
                    force_setattr(vcpu, "core_type", sys.intern(vcpu.core_type))
            yield instance


def _topology_out(topology: Topology) -> _Topology:
    core_types = tuple(
        _CoreType(
            t.name,
            t.coefficient,
            t.nominal_ips,
            cpulist.show(topology.pcpus_of(t.name)),
            t.smt_busy_factor,
            _siblings(topology, t),
        )
        for t in topology.core_types
    )
    offline = cpulist.show(topology.offline)
    return _Topology(core_types, topology.reference, topology.source, offline)


def _siblings(topology: Topology, core_type: CoreType) -> tuple[str, ...]:
    if core_type.smt_busy_factor is None:
        return ()
    pcpus = topology.pcpus_of(core_type.name)
    cores = {tuple(sorted((p, *topology.siblings_of(p)))) for p in pcpus}
    return tuple(cpulist.show(core) for core in sorted(cores) if len(core) > 1)


def decode(text: object) -> HostReport:
    """Read a report.

    Raises:
        ReportInvalid: of kind ``oversized``, ``malformed``, or ``version`` (written by another
            release in a format that this reader does not know).
    """
    if not isinstance(text, str):
        raise ReportInvalid("malformed", "it is not a string")
    if len(text) > CHARACTERS_MAX:
        raise ReportInvalid("oversized", f"{len(text)} characters, more than {CHARACTERS_MAX}")
    try:
        if (version := _version.decode(text).version) != VERSION:
            raise ReportInvalid("version", f"version {version}, only {VERSION} is known here")
        return _report(_host.decode(text))
    except (ValueError, RecursionError) as exc:  # msgspec's errors are ValueErrors
        raise ReportInvalid("malformed", str(exc)[:200]) from exc


def _report(host: _Host) -> HostReport:
    instances = tuple(_instances(host.groups))
    if len({i.resource for i in instances}) != len(instances):
        raise ValueError("an instance occurs twice")
    for allowed in {v.cpus_allowed_list for i in instances for v in i.vcpus}:
        pcpus_of(allowed)  # raises if it is not a CPU list
    return HostReport(
        host.origin,
        _topology_in(host.topology),
        pcpus_of(host.bookable),
        host.reserve_ratio,
        instances,
        host.policy,
        host.counters,
        host.healthy,
        tuple(problem[:NAME_MAX] for problem in host.problems),
    )


@functools.lru_cache(maxsize=4096)
def _topology_in(read: _Topology) -> Topology:
    """Cached, so that all hosts of one model share it."""
    threads = {
        pcpu: core
        for t in read.core_types
        for core in map(cpulist.parse, t.siblings)
        for pcpu in pcpus_of(t.pcpus) & set(core)
    }
    pcpus = [
        PCpu(pcpu, t.name, threads.get(pcpu, ()))
        for t in read.core_types
        for pcpu in pcpus_of(t.pcpus)
    ]
    if len({t.name for t in read.core_types}) != len(read.core_types):
        raise ValueError("a core type occurs twice")
    if len({p.id for p in pcpus}) != len(pcpus):
        raise ValueError("a pCPU belongs to two core types")
    if sum(len(cpulist.parse(core)) for t in read.core_types for core in t.siblings) > len(threads):
        raise ValueError("siblings name a pCPU twice, or one that their core type does not have")
    return Topology(
        tuple(_core_type(t) for t in read.core_types),
        tuple(sorted(pcpus, key=lambda p: p.id)),
        read.reference,
        read.source,
        offline=cpulist.parse(read.offline),
    )


def _core_type(read: _CoreType) -> CoreType:
    threads = max((len(cpulist.parse(core)) for core in read.siblings), default=1)
    return CoreType(
        read.name,
        read.coefficient,
        threads_per_core=threads,
        nominal_ips=read.nominal_ips,
        smt_busy_factor=read.smt_busy_factor,
    )
