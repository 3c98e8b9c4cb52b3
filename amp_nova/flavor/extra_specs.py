# SPDX-License-Identifier: Apache-2.0
"""The grammar of ``amp:*`` extra specs, and the booking that a flavor expresses in it.

``TABLE`` defines the grammar. Validators, filter, agent, command line and simulator all use it. A
new key is a row of it, a field of ``Booking`` that ``examine`` fills, and a row in the table of
``doc/source/admin/first-server.rst``; one that the scheduler has to know is in the host report, too
(``wire.host_report``).
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from amp_nova.exceptions import BookingInvalid
from amp_nova.model import cpulist

Kind = Literal["pref_core", "ips", "best_effort"]
Limit = Literal["hard", "soft"]

NAMESPACE = "amp"
FOREIGN_QUOTA = "quota:cpu_"
"""Prefix of Nova's own CPU tuning keys, which set the same quota."""
CPU_POLICY = "hw:cpu_policy"
"""Nova's key for pCPUs that no other instance uses."""
OWN_CPUS = {
    CPU_POLICY: ("dedicated", "mixed"),
    "hw:cpu_realtime": ("yes", "true", "1", "on", "t", "y"),
}
"""Nova's keys and values that give a guest pCPUs of its own (see also ``own_cpus``)."""
_PCPU = re.compile(r"resources[\w-]*:PCPU")
NEED_OWN_CPUS = ("hw:cpu_thread_policy", "hw:cpu_dedicated_mask", "hw:emulator_threads_policy")
"""Nova's keys that it refuses without these; the last only with the value ``isolate``."""
DEDICATED = "a booking shares its pCPUs with others: remove the booking or the dedicated CPUs"

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kMGT]?)")
VCPU_INDEX = "0|[1-9][0-9]{0,3}"
"""Pattern of N in keys that name a single vCPU."""
VCPUS_NAMED_MAX = 10_000
_KEY = re.compile(rf"amp:([a-z_]+)(?:\.({VCPU_INDEX}))?")
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_MAX = 1e15
"""The greatest value: beyond the useful range of every unit, and small enough for finite sums."""


@dataclass(frozen=True, slots=True)
class ExtraSpec:
    """One key of the grammar.

    ``value_of`` converts text to a value, and raises ``ValueError`` if it is not allowed.
    """

    name: str
    per_vcpu: bool
    allowed: str
    meaning: str
    value_of: Callable[[str], float | str]


def _number(
    low: float, high: float, *, above: bool = False, factors: bool = False
) -> Callable[[str], float]:
    """A parser of decimals from ``low`` to ``high``; with ``above``, ``low`` itself is excluded."""

    def parse(text: str) -> float:
        match = _NUMBER.fullmatch(text)
        if match is None or (match[2] and not factors):
            raise ValueError(text)
        value = float(match[1]) * _FACTORS[match[2]]
        if not (low < value if above else low <= value) or value > high:
            raise ValueError(text)
        return value

    return parse


def _word(pattern: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(text)
        return text

    return parse


def _efficiency(text: str) -> float | str:
    return text if text in ("low", "medium", "high") else _number(1.0, _MAX)(text)


TABLE: tuple[ExtraSpec, ...] = (
    ExtraSpec(
        "pref_core",
        True,
        "a decimal above 0 and up to 10^15 without exponent, such as 0.5",
        "capacity of each vCPU, in reference cores",
        _number(0.0, _MAX, above=True),
    ),
    ExtraSpec(
        "ips",
        True,
        "a decimal above 0 and up to 1000T, with an optional k, M, G or T, such as 2.5G",
        "capacity of each vCPU, in instructions per second",
        _number(0.0, _MAX, above=True, factors=True),
    ),
    ExtraSpec(
        "limit",
        False,
        "hard or soft",
        "hard: never more than booked; soft: more while there is idle capacity",
        _word("hard|soft"),
    ),
    ExtraSpec(
        "burst_s",
        False,
        "a decimal from 0 to 10",
        "seconds of booked capacity that an idle vCPU may save up",
        _number(0.0, 10.0),
    ),
    ExtraSpec(
        "core_type",
        False,
        "the name of a core type, as shown by 'amp-nova topology'",
        "the only core type on which the vCPUs may run",
        _word("[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"),
    ),
    ExtraSpec(
        "efficiency",
        False,
        "a decimal from 1 to 10^15 without exponent, or low, medium or high",
        "expected speedup on fast cores, until it is measured",
        _efficiency,
    ),
    ExtraSpec(
        "coefficient",
        False,
        "fixed or adaptive",
        "fixed: a booking is exact CPU time; adaptive: its work runs at the same speed everywhere",
        _word("fixed|adaptive"),
    ),
    ExtraSpec(
        "weight",
        False,
        "a decimal from 0.01 to 100",
        "priority among best-effort instances",
        _number(0.01, 100.0),
    ),
    ExtraSpec(
        "parallel",
        False,
        "true or false",
        "whether its vCPUs run one parallel program, whose threads wait for each other",
        _word("true|false"),
    ),
)
_BY_NAME = {spec.name: spec for spec in TABLE}


@dataclass(frozen=True, slots=True)
class VcpuBooking:
    """What one vCPU books: ``refcores`` (reference cores), ``ips``, or neither (best effort)."""

    index: int
    refcores: float | None = None
    ips: float | None = None

    @property
    def kind(self) -> Kind:
        """In which unit it books, if it does."""
        if self.refcores is not None:
            return "pref_core"
        return "best_effort" if self.ips is None else "ips"


@dataclass(frozen=True, slots=True)
class Booking:
    """What an instance books, by vCPU."""

    vcpus: tuple[VcpuBooking, ...]
    limit: Limit = "hard"
    burst_s: float = 0.0
    core_type: str | None = None
    efficiency: float | str | None = None
    weight: float = 1.0
    adaptive: bool | None = None
    """Whether each vCPU's own coefficients convert its booking (``amp:coefficient``); ``None``: the
    host's configuration decides."""
    parallel: bool | None = None
    """Whether its vCPUs run one parallel program (``amp:parallel``); ``None``: not stated."""

    @property
    def booked(self) -> bool:
        """Whether any vCPU has a booking."""
        return any(v.kind != "best_effort" for v in self.vcpus)


def best_effort(vcpus: int) -> Booking:
    """The booking of an instance without a booked vCPU."""
    return Booking(tuple(VcpuBooking(i) for i in range(vcpus)))


Values = dict[tuple[str, int | None], float | str]


def _read(specs: Mapping[str, str], vcpus: int) -> tuple[Values, list[str]]:
    """The values of all ``amp:`` keys by key and vCPU, and one sentence for each error."""
    values: Values = {}
    errors = []
    for key in sorted(k for k in specs if k.startswith(f"{NAMESPACE}:")):
        match = _KEY.fullmatch(key)
        spec = _BY_NAME.get(match[1]) if match else None
        if match is None or spec is None or (match[2] is not None and not spec.per_vcpu):
            errors.append(_unknown(key, vcpus))
            continue
        index = None if match[2] is None else int(match[2])
        if index is not None and index >= vcpus:
            errors.append(f"{key} names a vCPU that does not exist: use 0 to {vcpus - 1}")
            continue
        try:
            values[spec.name, index] = spec.value_of(str(specs[key]))
        except ValueError:
            errors.append(f"{key}={_shown(specs[key])} is not allowed: give {spec.allowed}")
    return values, errors


def fault(key: str, value: str) -> str | None:
    """The error in one extra spec, regardless of the rest of the flavor; ``None`` if valid."""
    _, errors = _read({key: value}, VCPUS_NAMED_MAX)
    return errors[0] if errors else None


def _shown(value: object) -> str:
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _unknown(key: str, vcpus: int) -> str:
    name, dot, _ = key.removeprefix(f"{NAMESPACE}:").partition(".")
    hint = f"allowed: {', '.join(f'{NAMESPACE}:{each}' for each in _BY_NAME)}"
    if near := difflib.get_close_matches(name.lower(), _BY_NAME, n=1):
        index = f".N, with N from 0 to {vcpus - 1}" if dot and _BY_NAME[near[0]].per_vcpu else ""
        hint = f"did you mean {NAMESPACE}:{near[0]}{index}?"
    return f"{_shown(key)} is not an extra spec of amp-nova: {hint}"


def near_misses(specs: Mapping[str, str]) -> tuple[str, ...]:
    """One sentence for each key that nearly is one of this table, and that Nova ignores.

    Nova accepts any key of a namespace that it does not know, so the server books nothing.
    """
    meant = {f"{NAMESPACE}_{name}": name for name in _BY_NAME}
    meant |= {name: name for name, spec in _BY_NAME.items() if spec.per_vcpu}
    found = []
    for key in sorted(k for k in specs if not k.startswith(f"{NAMESPACE}:")):
        plain = re.sub(r"[^a-z]+", "_", key.lower()).strip("_")  # whatever separates the words
        near = difflib.get_close_matches(plain, meant, n=1, cutoff=0.85)
        if near or plain.endswith("_pref_core"):  # in whatever namespace
            name = f"{NAMESPACE}:{meant[near[0]] if near else 'pref_core'}"
            found.append(f"{_shown(key)} books nothing, because Nova ignores it: write {name}")
    return tuple(found)


def _vcpu(index: int, values: Values) -> VcpuBooking | None:
    """The booking of one vCPU; ``None`` if it is booked both in reference cores and in Ips."""
    refcores = values.get(("pref_core", index), values.get(("pref_core", None)))
    ips = values.get(("ips", index), values.get(("ips", None)))
    if refcores is not None and ips is not None:
        return None
    return VcpuBooking(
        index, None if refcores is None else float(refcores), None if ips is None else float(ips)
    )


def own_cpus(specs: Mapping[str, str]) -> str | None:
    """The key, if there is one, with which Nova gives a guest pCPUs of its own.

    That is either a policy, or dedicated CPUs claimed in Placement, from which Nova concludes one.
    """
    by_policy = (k for k, values in OWN_CPUS.items() if specs.get(k, "").lower() in values)
    by_claim = (k for k in sorted(specs) if _PCPU.fullmatch(k) and specs[k].strip("0 "))
    return next(by_policy, None) or next(by_claim, None)


def examine(specs: Mapping[str, str], vcpus: int) -> tuple[Booking | None, tuple[str, ...]]:
    """The booking of a flavor with ``vcpus`` vCPUs, or ``None`` and one sentence for each error.

    Keys outside ``amp:`` are ignored, except that ``quota:cpu_*`` and dedicated CPUs exclude a
    booking.
    """
    values, errors = _read(specs, vcpus)
    read = [_vcpu(i, values) for i in range(vcpus)]
    booked = tuple(v for v in read if v is not None)
    if twice := [i for i, v in enumerate(read) if v is None]:
        errors.append(
            f"vCPU {cpulist.show(twice)} is booked both by amp:pref_core and by amp:ips: "
            "keep one of them"
        )
    foreign = sorted(k for k in specs if k.startswith(FOREIGN_QUOTA))
    if foreign and (twice or any(v.kind != "best_effort" for v in booked)):
        errors.append(
            f"{_shown(foreign[0])} and a booking would both set the CPU quota: keep one of them"
        )
    needy = (k for k in NEED_OWN_CPUS if k in specs and specs[k] != "share")
    own = own_cpus(specs) or next(needy, None)
    if own and any(v is not None and v.kind != "best_effort" for v in read):
        errors.append(f"{own}={_shown(specs[own])} is not possible, because {DEDICATED}")
    if errors:
        return None, tuple(dict.fromkeys(errors))
    general = {name: value for (name, index), value in values.items() if index is None}
    core_type = general.get("core_type")
    booking = Booking(
        vcpus=booked,
        limit="soft" if general.get("limit") == "soft" else "hard",
        burst_s=float(general.get("burst_s", 0.0)),
        core_type=None if core_type is None else str(core_type),
        efficiency=general.get("efficiency"),
        weight=float(general.get("weight", 1.0)),
        adaptive={"adaptive": True, "fixed": False}.get(str(general.get("coefficient"))),
        parallel={"true": True, "false": False}.get(str(general.get("parallel"))),
    )
    return booking, ()


def parse(specs: Mapping[str, str], vcpus: int) -> Booking:
    """The booking of a flavor; raises ``BookingInvalid`` with all errors if it is not valid."""
    booking, errors = examine(specs, vcpus)
    if booking is None:
        raise BookingInvalid("; ".join(errors))
    return booking


def vcpus_named(specs: Mapping[str, str]) -> int:
    """The smallest vCPU count, at least 1, that includes every vCPU named in a key."""
    named = (m[2] for key in specs if (m := _KEY.fullmatch(key)))
    return max((int(index) + 1 for index in named if index is not None), default=1)
