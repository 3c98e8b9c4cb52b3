"""What an agent tells the schedulers of its host: a versioned snapshot, and its form on the wire.

One JSON text, with lists of pCPUs in the kernel's short form (``0-3,8``) and without what is not
known. A reader refuses what it does not understand as a whole: half a report would be a lie.
"""

import functools
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from amp_nova.exceptions import SnapshotInvalid
from amp_nova.model import cpulist
from amp_nova.model.topology import CoreType, PCpu, Topology

VERSION = 1
"""Raised when an older reader would misunderstand a report; a new field alone does not raise it."""
CHARACTERS_MAX = 1 << 20
"""Longest report that is read: 1500 instances of 8 vCPUs, all booked, take half of it."""
NAME_MAX = 255
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Speedup:
    """A workload's measured speed on the host's fastest core type over its slowest; ``error`` is
    the standard error, ``None`` where it is not known."""

    ratio: float
    error: float | None = None


@dataclass(frozen=True, slots=True)
class VcpuShare:
    """One vCPU and its share of the host.

    ``refcores`` or ``ips`` is what it books. ``pcpu`` is where it is packed; a vCPU that books and
    has none found no room. ``core_type``: the one it is kept on. ``efficiency``: its score, IPC x
    utilization (kwon2011), where cycles are counted.
    """

    index: int
    refcores: float | None = None
    ips: float | None = None
    allowed: frozenset[int] = frozenset()
    core_type: str | None = None
    pcpu: int | None = None
    utilization_ratio: float | None = None
    speedup: Speedup | None = None
    efficiency: float | None = None

    @property
    def booked(self) -> bool:
        """Whether it books capacity."""
        return self.refcores is not None or self.ips is not None


@dataclass(frozen=True, slots=True)
class InstanceShare:
    """One instance. ``core_type``: the one its flavor insists on; ``hint``: its ``amp:efficiency``.

    ``flavor`` and ``image`` are Nova's ids, empty where the domain does not tell them.
    """

    resource: str
    vcpus: tuple[VcpuShare, ...]
    core_type: str | None = None
    weight: float = 1.0
    hint: float | str | None = None
    flavor: str = ""
    image: str = ""

    @property
    def booked(self) -> bool:
        """Whether any vCPU books capacity."""
        return any(v.booked for v in self.vcpus)


@dataclass(frozen=True, slots=True)
class Origin:
    """Who made a report, and when.

    ``node`` is Nova's name of the hypervisor (``hypervisor_hostname``). ``boot_id`` changes with
    every start of the agent, ``sequence`` counts its reports since; ``time_s`` is wall time.
    """

    node: str
    boot_id: str
    sequence: int
    time_s: float


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """One host as its agent knows it.

    ``bookable``: pCPUs a new instance may use. ``free_fast_cores``: what bookings leave of the
    fastest type. ``counters``: what counts instructions, ``None`` if nothing does; ``problems``:
    why the agent cannot keep all it should.
    """

    origin: Origin
    topology: Topology
    bookable: frozenset[int]
    reserve_ratio: float = 0.0
    instances: tuple[InstanceShare, ...] = ()
    policy: str = "none"
    counters: str | None = None
    healthy: bool = True
    problems: tuple[str, ...] = ()
    free_fast_cores: float = 0.0
    instance_of: Mapping[str, InstanceShare] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "instance_of", {i.resource: i for i in self.instances})

    def same_state(self, other: "HostSnapshot") -> bool:
        """Whether two reports differ in nothing but who made them when."""
        return (
            self.topology == other.topology
            and self.bookable == other.bookable
            and self.reserve_ratio == other.reserve_ratio
            and self.instances == other.instances
            and (self.policy, self.counters, self.healthy, self.problems)
            == (other.policy, other.counters, other.healthy, other.problems)
        )


def encode(snapshot: HostSnapshot) -> str:
    """The report as it travels."""
    origin, topology = snapshot.origin, snapshot.topology
    return json.dumps(
        _known(
            version=VERSION,
            node=origin.node,
            boot_id=origin.boot_id,
            sequence=origin.sequence,
            time_s=origin.time_s,
            reference=topology.reference,
            source=topology.source,
            core_types=[_type_out(t, topology) for t in topology.core_types],
            offline=cpulist.show(topology.offline),
            bookable=cpulist.show(snapshot.bookable),
            reserve_ratio=snapshot.reserve_ratio,
            policy=snapshot.policy,
            counters=snapshot.counters,
            healthy=snapshot.healthy,
            problems=list(snapshot.problems),
            free_fast_cores=round(snapshot.free_fast_cores, 6),
            instances=[_instance_out(i) for i in snapshot.instances],
        ),
        separators=(",", ":"),
        allow_nan=False,
    )


def _known(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _type_out(core_type: CoreType, topology: Topology) -> dict[str, Any]:
    return _known(
        name=core_type.name,
        coefficient=core_type.coefficient,
        nominal_ips=core_type.nominal_ips,
        pcpus=cpulist.show(topology.pcpus_of(core_type.name)),
    )


def _instance_out(instance: InstanceShare) -> dict[str, Any]:
    return _known(
        resource=instance.resource,
        core_type=instance.core_type,
        weight=None if instance.weight == 1.0 else instance.weight,
        hint=instance.hint,
        flavor=instance.flavor or None,
        image=instance.image or None,
        vcpus=[_vcpu_out(v) for v in instance.vcpus],
    )


def _vcpu_out(vcpu: VcpuShare) -> dict[str, Any]:
    speedup = vcpu.speedup
    return _known(
        index=vcpu.index,
        refcores=vcpu.refcores,
        ips=vcpu.ips,
        allowed=cpulist.show(vcpu.allowed),
        core_type=vcpu.core_type,
        pcpu=vcpu.pcpu,
        utilization=_short(vcpu.utilization_ratio),
        speedup=_short(speedup.ratio) if speedup else None,
        speedup_error=_short(speedup.error) if speedup else None,
        efficiency=_short(vcpu.efficiency),
    )


def _short(value: float | None) -> float | None:
    """As exact as anything measured is."""
    return None if value is None else round(value, 4)


def decode(text: object) -> HostSnapshot:
    """Read a report; ``SnapshotInvalid`` with its ``kind`` if it is not one.

    Kinds: ``oversized``, ``malformed``, ``version`` (of a newer agent than this reader knows).
    """
    if not isinstance(text, str):
        raise SnapshotInvalid("malformed", "a report is a text")
    if len(text) > CHARACTERS_MAX:
        raise SnapshotInvalid("oversized", f"{len(text)} characters, over {CHARACTERS_MAX}")
    try:
        said = json.loads(text, parse_constant=_no_number)
        if not isinstance(said, dict):
            raise ValueError("it is no object")
        version = _Reader(said).whole("version")
        if version > VERSION:
            raise SnapshotInvalid("version", f"version {version}: only {VERSION} is known here")
        return _snapshot(_Reader(said))
    except (ValueError, RecursionError) as exc:
        raise SnapshotInvalid("malformed", str(exc)[:200]) from exc


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


@functools.lru_cache(maxsize=4096)
def _pcpus(text: str) -> frozenset[int]:
    """One object for one list: most vCPUs of a cloud may use the same few sets of pCPUs."""
    return frozenset(cpulist.parse(text))


class _Reader:
    """Takes one JSON object apart; every method raises ``ValueError`` naming the field."""

    def __init__(self, said: object) -> None:
        if not isinstance(said, dict):
            raise ValueError("an object was expected")
        self._said = said

    def _as(self, key: str, kind: type[T] | tuple[type, ...], default: Any = ...) -> Any:
        value = self._said.get(key)
        if value is None and default is not ...:
            return default
        # To Python a bool is a number, to the one who wrote the report it was none.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"{key} is not what it should be: {str(value)[:40]!r}")
        return value

    def text(self, key: str, default: Any = ...) -> Any:
        """A text of ordinary length."""
        value = self._as(key, str, default)
        if not isinstance(value, str):
            return value
        if len(value) > NAME_MAX:
            raise ValueError(f"{key} is too long")
        return sys.intern(value)  # flavors, images and core types are said again and again

    def name(self, key: str) -> str:
        """A text that is not empty."""
        if not (value := self.text(key)):
            raise ValueError(f"{key} is empty")
        return str(value)

    def truth(self, key: str, default: bool) -> bool:
        """True or false."""
        return bool(self._as(key, bool, default))

    def whole(self, key: str, default: Any = ...) -> Any:
        """A number that counts something."""
        value = self._as(key, int, default)
        if value is not None and not 0 <= value < 1 << 53:
            raise ValueError(f"{key} is out of range")
        return value

    def number(self, key: str, default: Any = ..., *, most: float = 1e18) -> Any:
        """A finite number from 0 to ``most``."""
        value = self._as(key, (int, float), default)
        if value is default and default is not ...:
            return value
        if not (math.isfinite(value) and 0 <= value <= most):
            raise ValueError(f"{key} is out of range")
        return float(value)

    def positive(self, key: str, default: Any = ...) -> Any:
        """A finite number above 0."""
        value = self.number(key, default)
        if value is not None and value <= 0:
            raise ValueError(f"{key} is not above 0")
        return value

    def pcpus(self, key: str) -> frozenset[int]:
        """A list of pCPUs."""
        return _pcpus(self._as(key, str, ""))

    def each(self, key: str, read: Callable[["_Reader"], T]) -> tuple[T, ...]:
        """A list of objects."""
        return tuple(read(_Reader(item)) for item in self._as(key, list, []))

    def hint(self, key: str) -> float | str | None:
        """A number or a text."""
        value = self._as(key, (str, int, float), None)
        hint: float | str | None = (
            self.text(key) if isinstance(value, str) else self.number(key, None)
        )
        return hint

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        found = self._as(key, list, [])
        if not all(isinstance(item, str) for item in found):
            raise ValueError(f"{key} holds something that is no text")
        return tuple(item[:NAME_MAX] for item in found)


def _snapshot(said: _Reader) -> HostSnapshot:
    topology = _topology(said)
    online, bookable = frozenset(p.id for p in topology.pcpus), said.pcpus("bookable")
    instances = said.each("instances", _instance)
    if len({i.resource for i in instances}) != len(instances):
        raise ValueError("an instance is named twice")
    return HostSnapshot(
        Origin(
            said.name("node"),
            said.name("boot_id"),
            said.whole("sequence"),
            said.number("time_s"),
        ),
        topology,
        bookable=bookable if bookable <= online else bookable & online,
        reserve_ratio=said.number("reserve_ratio", 0.0, most=1.0),
        instances=instances,
        policy=said.text("policy", "none"),
        counters=said.text("counters", None),
        healthy=said.truth("healthy", default=True),
        problems=said.texts("problems"),
        free_fast_cores=said.number("free_fast_cores", 0.0),
    )


def _topology(said: _Reader) -> Topology:
    found = said.each("core_types", _core_type)
    return _machine(
        found, said.text("reference", ""), said.text("source", ""), said.pcpus("offline")
    )


@functools.lru_cache(maxsize=4096)
def _machine(
    found: tuple[tuple[CoreType, frozenset[int]], ...],
    reference: str,
    source: str,
    offline: frozenset[int],
) -> Topology:
    """One object for all hosts of one make."""
    pcpus = [PCpu(pcpu, core_type.name) for core_type, ids in found for pcpu in sorted(ids)]
    if len({t.name for t, _ in found}) != len(found):
        raise ValueError("a core type is named twice")
    if len({p.id for p in pcpus}) != len(pcpus):
        raise ValueError("a pCPU is of two core types")
    return Topology(
        tuple(core_type for core_type, _ in found),
        tuple(sorted(pcpus, key=lambda p: p.id)),
        reference,
        source,
        offline=tuple(sorted(offline)),
    )


def _core_type(said: _Reader) -> tuple[CoreType, frozenset[int]]:
    core_type = CoreType(
        said.name("name"),
        said.positive("coefficient", None),
        nominal_ips=said.positive("nominal_ips", None),
    )
    return core_type, said.pcpus("pcpus")


def _instance(said: _Reader) -> InstanceShare:
    return InstanceShare(
        said.name("resource"),
        said.each("vcpus", _vcpu),
        said.text("core_type", None),
        said.positive("weight", 1.0),
        said.hint("hint"),
        said.text("flavor", ""),
        said.text("image", ""),
    )


def _vcpu(said: _Reader) -> VcpuShare:
    ratio = said.positive("speedup", None)
    return VcpuShare(
        said.whole("index"),
        said.positive("refcores", None),
        said.positive("ips", None),
        said.pcpus("allowed"),
        said.text("core_type", None),
        said.whole("pcpu", None),
        said.number("utilization", None, most=1e6),
        None if ratio is None else Speedup(ratio, said.number("speedup_error", None)),
        said.number("efficiency", None),
    )
