"""The host report as JSON text.

pCPU lists are in the kernel's format (``0-3,8``), and unknown values are left out. A reader ignores
keys that it does not know, and rejects a report with any invalid value as a whole.
"""

import functools
import json
import math
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from amp_nova.exceptions import ReportInvalid
from amp_nova.model import cpulist
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.wire.host_report import HostReport, Origin, ReportedInstance, ReportedVcpu, Speedup

VERSION = 1
"""Raised only when an older reader would misinterpret a report; new keys do not raise it."""
CHARACTERS_MAX = 1 << 20
"""Longest report accepted: 1500 instances of 8 booked vCPUs take half of it."""
NAME_MAX = 255
T = TypeVar("T")


def encode(report: HostReport) -> str:
    """The JSON text of a report."""
    origin, topology = report.origin, report.topology
    return json.dumps(
        _known(
            version=VERSION,
            node=origin.node,
            boot_id=origin.boot_id,
            sequence=origin.sequence,
            time_s=origin.time_s,
            reference=topology.reference,
            source=topology.source,
            core_types=[
                _known(
                    name=t.name,
                    coefficient=t.coefficient,
                    nominal_ips=t.nominal_ips,
                    pcpus=cpulist.show(topology.pcpus_of(t.name)),
                )
                for t in topology.core_types
            ],
            offline=cpulist.show(topology.offline),
            bookable=cpulist.show(report.bookable),
            reserve_ratio=report.reserve_ratio,
            policy=report.policy,
            counters=report.counters,
            healthy=report.healthy,
            problems=list(report.problems),
            instances=[_encode_instance(i) for i in report.instances],
        ),
        separators=(",", ":"),
        allow_nan=False,
    )


def _known(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _encode_instance(instance: ReportedInstance) -> dict[str, Any]:
    return _known(
        resource=instance.resource,
        core_type=instance.core_type,
        weight=None if instance.weight == 1.0 else instance.weight,
        hint=instance.hint,
        flavor=instance.flavor or None,
        image=instance.image or None,
        vcpus=[_encode_vcpu(v) for v in instance.vcpus],
    )


def _encode_vcpu(vcpu: ReportedVcpu) -> dict[str, Any]:
    speedup = vcpu.speedup
    return _known(
        index=vcpu.index,
        refcores=vcpu.refcores,
        ips=vcpu.ips,
        allowed=cpulist.show(vcpu.allowed),
        core_type=vcpu.core_type,
        pcpu=vcpu.pcpu,
        utilization=_rounded(vcpu.utilization_ratio),
        speedup=_rounded(speedup.ratio) if speedup else None,
        speedup_error=_rounded(speedup.error) if speedup else None,
    )


def _rounded(value: float | None) -> float | None:
    """A measured value, to the four decimals that are significant."""
    return None if value is None else round(value, 4)


def decode(text: object) -> HostReport:
    """Read a report.

    Raises:
        ReportInvalid: of kind ``oversized``, ``malformed``, or ``version`` (written by a newer
            agent in a format that this reader does not know).
    """
    if not isinstance(text, str):
        raise ReportInvalid("malformed", "it is not a string")
    if len(text) > CHARACTERS_MAX:
        raise ReportInvalid("oversized", f"{len(text)} characters, more than {CHARACTERS_MAX}")
    try:
        reader = _Reader(json.loads(text, parse_constant=_reject_constant))
        if (version := reader.integer("version")) > VERSION:
            raise ReportInvalid("version", f"version {version}, only {VERSION} is known here")
        return _host(reader)
    except (ValueError, RecursionError) as exc:
        raise ReportInvalid("malformed", str(exc)[:200]) from exc


def _reject_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


class _Reader:
    """Typed access to one JSON object; raises ``ValueError`` naming the key.

    Without a ``default`` a key is required.
    """

    def __init__(self, value: object) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"an object was expected, not {str(value)[:40]!r}")
        self._object = value

    def value(self, key: str, kind: type | tuple[type, ...], default: Any = ...) -> Any:
        """A value of this type."""
        value = self._object.get(key)
        if value is None and default is not ...:
            return default
        # In Python a bool is an int; in JSON it is not.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"{key} has the wrong type: {str(value)[:40]!r}")
        return value

    def text(self, key: str, default: Any = ...) -> Any:
        """A string of at most ``NAME_MAX`` characters; a required one is not empty."""
        value = self.value(key, str, default)
        if value is None:
            return None
        if len(value) > NAME_MAX or (not value and default is ...):
            raise ValueError(f"{key} is empty or longer than {NAME_MAX} characters")
        return sys.intern(value)  # flavors, images and core types recur in every report

    def integer(self, key: str, default: Any = ...) -> Any:
        """An integer from 0 to 2^53, which every JSON reader represents."""
        value = self.value(key, int, default)
        if value is not None and not 0 <= value < 1 << 53:
            raise ValueError(f"{key} is out of range")
        return value

    def number(self, key: str, default: Any = ..., *, most: float = 1e18) -> Any:
        """A finite number from 0 to ``most``."""
        value = self.value(key, (int, float), default)
        if value is None:
            return None
        if not (math.isfinite(value) and 0 <= value <= most):
            raise ValueError(f"{key} is out of range")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> Any:
        """A finite number above 0."""
        value = self.number(key, default)
        if value == 0:
            raise ValueError(f"{key} is not above 0")
        return value

    def pcpus(self, key: str) -> frozenset[int]:
        """A pCPU list; empty if the key is missing."""
        return _pcpus(self.value(key, str, ""))

    def objects(self, key: str, read: Callable[["_Reader"], T]) -> tuple[T, ...]:
        """An array of objects; empty if the key is missing."""
        return tuple(read(_Reader(item)) for item in self.value(key, list, []))


@functools.lru_cache(maxsize=4096)
def _pcpus(text: str) -> frozenset[int]:
    """Cached, so that the vCPUs of a cloud share the few sets that occur."""
    return frozenset(cpulist.parse(text))


def _host(reader: _Reader) -> HostReport:
    topology = _topology(
        reader.objects("core_types", _core_type),
        reader.text("reference", ""),
        reader.text("source", ""),
        reader.pcpus("offline"),
    )
    instances = reader.objects("instances", _instance)
    if len({i.resource for i in instances}) != len(instances):
        raise ValueError("an instance occurs twice")
    problems = reader.value("problems", list, [])
    if not all(isinstance(problem, str) for problem in problems):
        raise ValueError("problems contains a value that is not a string")
    return HostReport(
        Origin(
            reader.text("node"),
            reader.text("boot_id"),
            reader.integer("sequence"),
            reader.number("time_s"),
        ),
        topology,
        bookable=reader.pcpus("bookable"),
        reserve_ratio=reader.number("reserve_ratio", 0.0, most=1.0),
        instances=instances,
        policy=reader.text("policy", "none"),
        counters=reader.text("counters", None),
        healthy=reader.value("healthy", bool, default=True),
        problems=tuple(problem[:NAME_MAX] for problem in problems),
    )


@functools.lru_cache(maxsize=4096)
def _topology(
    core_types: tuple[tuple[CoreType, frozenset[int]], ...],
    reference: str,
    source: str,
    offline: frozenset[int],
) -> Topology:
    """Cached, so that all hosts of one model share it."""
    pcpus = [PCpu(pcpu, core_type.name) for core_type, ids in core_types for pcpu in sorted(ids)]
    if len({t.name for t, _ in core_types}) != len(core_types):
        raise ValueError("a core type occurs twice")
    if len({p.id for p in pcpus}) != len(pcpus):
        raise ValueError("a pCPU belongs to two core types")
    return Topology(
        tuple(core_type for core_type, _ in core_types),
        tuple(sorted(pcpus, key=lambda p: p.id)),
        reference,
        source,
        offline=tuple(sorted(offline)),
    )


def _core_type(reader: _Reader) -> tuple[CoreType, frozenset[int]]:
    core_type = CoreType(
        reader.text("name"),
        reader.positive("coefficient"),
        nominal_ips=reader.positive("nominal_ips"),
    )
    return core_type, reader.pcpus("pcpus")


def _instance(reader: _Reader) -> ReportedInstance:
    hint_is_text = isinstance(reader.value("hint", (str, int, float), None), str)
    return ReportedInstance(
        reader.text("resource"),
        reader.objects("vcpus", _vcpu),
        reader.text("core_type", None),
        reader.positive("weight", 1.0),
        reader.text("hint", "") if hint_is_text else reader.number("hint", None),
        reader.text("flavor", ""),
        reader.text("image", ""),
    )


def _vcpu(reader: _Reader) -> ReportedVcpu:
    ratio = reader.positive("speedup")
    return ReportedVcpu(
        reader.integer("index"),
        reader.positive("refcores"),
        reader.positive("ips"),
        reader.pcpus("allowed"),
        reader.text("core_type", None),
        reader.integer("pcpu", None),
        reader.number("utilization", None, most=1e6),
        None if ratio is None else Speedup(ratio, reader.number("speedup_error", None)),
    )
