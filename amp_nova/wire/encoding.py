# SPDX-License-Identifier: Apache-2.0
"""The host report as JSON text.

pCPU lists are in the kernel's format (``0-3,8``), and unknown values are left out. A reader ignores
keys that it does not know, and rejects a report with any invalid value as a whole.

A report may come from anyone who can send messages, so what it costs to read is bounded whatever it
says: its size before it is decoded, then the number of things in it, and the CPUs in a list before
they are counted up.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated
from weakref import WeakValueDictionary

import msgspec
from msgspec import Meta, Struct, structs
from msgspec.structs import force_setattr

from amp_nova.exceptions import ReportInvalid
from amp_nova.model import cpulist
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.wire.host_report import (
    INSTANCES_MAX,
    PCPUS_MAX,
    VCPUS_MAX,
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
CHARACTERS_MAX = 1 << 18
"""Longest report accepted: 2,048 vCPUs in 512 instances take half of it."""
SIZE_MAX = 1_750_000
"""Greatest size of a report by ``_size`` and ``_counted``, in bytes. They overestimate by half:
reading and evaluating such a report takes at most 1 MiB."""
PCPU_BYTES, SIBLING_BYTES, LIST_BYTES, PART_BYTES, LISTED_BYTES = 500, 300, 450, 250, 64
"""What a pCPU counts, one with siblings in addition, a CPU list, each part of it after a comma, and
each pCPU in it."""
CORE_TYPES_MAX = 6
THREADS_MAX = 8
"""Most hardware threads of a core: POWER has that many."""


class _CoreType(Struct, omit_defaults=True, frozen=True):
    name: Name
    coefficient: Annotated[float, Meta(ge=1e-3, le=1e3)] | None = None
    nominal_ips: Annotated[float, Meta(ge=1e3, le=1e15)] | None = None
    pcpus: str = ""
    smt_busy_factor: Annotated[float, Meta(ge=0, le=10)] | None = None
    siblings: Annotated[tuple[str, ...], Meta(max_length=PCPUS_MAX)] = ()
    """The pCPUs of each core with several hardware threads, where these slow each other down."""


class _Topology(Struct, omit_defaults=True, frozen=True):
    core_types: Annotated[tuple[_CoreType, ...], Meta(min_length=1, max_length=CORE_TYPES_MAX)]
    reference: Text = ""
    source: Text = ""
    one_type: bool = False


class _Group(Struct, array_like=True):
    """Instances of one flavor and image."""

    flavor: Text
    image: Text
    instances: Annotated[tuple[ReportedInstance, ...], Meta(max_length=INSTANCES_MAX)]


class _Host(Struct, omit_defaults=True):
    version: Count
    origin: Origin
    topology: _Topology
    bookable: str = ""
    reserve_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.0
    groups: Annotated[tuple[_Group, ...], Meta(max_length=INSTANCES_MAX)] = ()
    healthy: bool = True


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
        report.healthy,
    )
    return msgspec.json.encode(host).decode()


def _groups(instances: Iterable[ReportedInstance]) -> tuple[_Group, ...]:
    groups: dict[tuple[str, str], list[ReportedInstance]] = {}
    for instance in instances:
        groups.setdefault((instance.flavor, instance.image), []).append(instance)
    return tuple(
        _Group(*key, tuple(structs.replace(i, flavor="", image="") for i in members))
        for key, members in groups.items()
    )


def _instances(host: _Host) -> Iterator[ReportedInstance]:
    """The instances, completed, with one object for each string that recurs.

    In place, while nobody else has them: with copies, reading the largest reports takes 1.07 MiB,
    over the budget of 1 MiB (tests/functional/test_hostile_reports.py).
    """
    strings = {t.name: t.name for t in host.topology.core_types}
    for group in host.groups:
        for instance in group.instances:
            force_setattr(instance, "flavor", group.flavor)
            force_setattr(instance, "image", group.image)
            for vcpu in instance.vcpus:
                text = vcpu.cpus_allowed_list
                force_setattr(vcpu, "cpus_allowed_list", strings.setdefault(text, text))
                if (name := vcpu.core_type) is not None:
                    if name not in strings:
                        raise ValueError(f"a vCPU is on core type '{name}', which the host lacks")
                    force_setattr(vcpu, "core_type", strings[name])
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
    return _Topology(core_types, topology.reference, topology.source, topology.one_type)


def _siblings(topology: Topology, core_type: CoreType) -> tuple[str, ...]:
    if core_type.smt_busy_factor is None:
        return ()
    pcpus = topology.pcpus_of(core_type.name)
    cores = {tuple(sorted((p, *topology.siblings_of(p)))) for p in pcpus}
    return tuple(cpulist.show(core) for core in sorted(cores) if len(core) > 1)


def decode(text: object) -> HostReport:
    """Read a report.

    Raises ``ReportInvalid`` of kind ``oversized``, ``malformed``, or ``version`` (written by
    another release in a format that this reader does not know).
    """
    if not isinstance(text, str):
        raise ReportInvalid("malformed", "it is not a string")
    if len(text) > CHARACTERS_MAX:
        raise ReportInvalid("oversized", f"{len(text)} characters, more than {CHARACTERS_MAX}")
    size = _size(text)
    _check_size(size)
    try:
        host = _host.decode(text)
        _check_version(host.version)
        _check_size(size + _counted(host))
        return _report(host)
    except (ValueError, RecursionError) as exc:  # msgspec's errors are ValueErrors
        with suppress(ValueError, RecursionError):
            _check_version(_version.decode(text).version)
        raise ReportInvalid("malformed", str(exc)[:200]) from exc


def _check_version(version: int) -> None:
    if version != VERSION:
        raise ReportInvalid("version", f"unsupported report version {version} (expected {VERSION})")


def _check_size(size: int) -> None:
    if size > SIZE_MAX:
        raise ReportInvalid("oversized", f"it would take {size} bytes, more than {SIZE_MAX}")


def _size(text: str) -> int:
    """An upper bound of the memory that the values in a JSON text take, from counts of characters.

    An array or object takes up to 80 bytes and 17 in the list that holds it, a string 49 and 17
    besides its characters, a number 24. Characters count twice, because some are copied, and take
    up to 4 bytes if any is not ASCII.
    """
    numbers = text.count(",") - text.count(",null") - text.count(',"')
    strings, structures = text.count('"') // 2, text.count("[") + text.count("{")
    wide = not text.isascii() or "\\u" in text
    return 97 * structures + 66 * strings + 24 * max(0, numbers) + len(text) * (8 if wide else 2)


def _counted(host: _Host) -> int:
    """Bytes that topology and CPU lists take; ``ValueError`` if there is too much of anything."""
    instances = [i for group in host.groups for i in group.instances]
    lists = {v.cpus_allowed_list for i in instances for v in i.vcpus} | {host.bookable}
    core_types = host.topology.core_types
    cores = [core for t in core_types for core in t.siblings]
    # Before they are split, which takes a microsecond for each part.
    texts = (*lists, *cores, *(t.pcpus for t in core_types))
    size = PART_BYTES * sum(text.count(",") for text in texts)
    _check_size(size)
    pcpus = sum(cpulist.count(t.pcpus) for t in core_types)
    vcpus = sum(len(i.vcpus) for i in instances)
    for what, count, most in (
        ("instances", len(instances), INSTANCES_MAX),
        ("vCPUs", vcpus, VCPUS_MAX),
        ("pCPUs", pcpus, PCPUS_MAX),
    ):
        if count > most:
            raise ValueError(f"{count} {what}, more than {most}")
    size += PCPU_BYTES * pcpus + SIBLING_BYTES * sum(map(cpulist.count, cores))
    return size + LIST_BYTES * len(lists) + LISTED_BYTES * sum(map(cpulist.count, lists))


def _report(host: _Host) -> HostReport:
    instances = tuple(_instances(host))
    if len({i.resource for i in instances}) != len(instances):
        raise ValueError("an instance occurs twice")
    if any(len({v.index for v in i.vcpus}) != len(i.vcpus) for i in instances):
        raise ValueError("a vCPU occurs twice")
    if (topology := _topologies.get(host.topology)) is None:
        topology = _topologies[host.topology] = _new_topology(host.topology)
    return HostReport(
        host.origin,
        topology,
        pcpus_of(host.bookable),
        host.reserve_ratio,
        instances,
        host.healthy,
    )


_topologies: WeakValueDictionary[_Topology, Topology] = WeakValueDictionary()
"""All hosts of one model share theirs, as long as one of them has a report."""


def _new_topology(read: _Topology) -> Topology:
    pcpus = {t.name: pcpus_of(t.pcpus) for t in read.core_types}
    if len(pcpus) != len(read.core_types):
        raise ValueError("a core type occurs twice")
    if len(frozenset[int]().union(*pcpus.values())) != sum(map(len, pcpus.values())):
        raise ValueError("a pCPU belongs to two core types")
    threads: dict[int, tuple[int, ...]] = {}
    core_types = tuple(_core_type(t, pcpus[t.name], threads) for t in read.core_types)
    online = ((p, name) for name, ids in pcpus.items() for p in ids)
    cpus = (PCpu(p, name, threads.get(p, ())) for p, name in sorted(online))
    return Topology(core_types, tuple(cpus), read.reference, read.source, one_type=read.one_type)


def _core_type(
    read: _CoreType, pcpus: frozenset[int], threads: dict[int, tuple[int, ...]]
) -> CoreType:
    """A core type; adds the siblings of each of its pCPUs to ``threads``."""
    cores = [cpulist.parse(core) for core in read.siblings]
    if any(len(core) > THREADS_MAX for core in cores):
        raise ValueError(f"a core has more than {THREADS_MAX} hardware threads")
    for core in cores:
        if not pcpus.issuperset(core) or not threads.keys().isdisjoint(core):
            raise ValueError("siblings name a pCPU twice, or one that their core type lacks")
        threads.update(dict.fromkeys(core, core))
    return CoreType(
        read.name,
        read.coefficient,
        threads_per_core=max(map(len, cores), default=1),
        nominal_ips=read.nominal_ips,
        smt_busy_factor=read.smt_busy_factor,
    )
