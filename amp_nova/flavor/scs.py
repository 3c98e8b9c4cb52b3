# SPDX-License-Identifier: Apache-2.0
"""What a flavor promises by the standards of Sovereign Cloud Stack, and the booking that keeps it.

scs-0103 names four CPU types in the extra spec ``scs:cpu-type``; scs-0100 has a letter for each in
the flavor's name. ``shared-core`` (V) promises at least 20 % of a core for more than 99 % of the
time, measured over a month; ``crowded-core`` (L) promises nothing; ``dedicated-thread`` (T) and
``dedicated-core`` (C) promise each vCPU a hardware thread or a core to itself.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_nova.exceptions import BookingInvalid
from amp_nova.flavor.extra_specs import CPU_POLICY, FOREIGN_QUOTA, NAMESPACE, own_cpus, parse

CPU_TYPE = "scs:cpu-type"
LETTERS = {
    "V": "shared-core",
    "L": "crowded-core",
    "T": "dedicated-thread",
    "C": "dedicated-core",
}
SHARE = 0.2
"""The share of a core that ``shared-core`` promises."""
MINUTE_KEPT_RATIO = 0.95
"""``rules.yaml`` counts a minute as kept from this share of the booking. With a booking of the
promised share over this ratio, a minute is kept if and only if the promise is."""
CORE_TYPE, PREF_CORE, LIMIT = (
    f"{NAMESPACE}:{name}" for name in ("core_type", "pref_core", "limit")
)
_NAME = re.compile(r"SCS-[1-9][0-9]*([VLTC])i?[-:].*")
_VARIANT = re.compile(r"scs:name-v[1-9][0-9]*")
_NO_SIBLINGS = {"hw:cpu_thread_policy": "isolate", "trait:HW_CPU_HYPERTHREADING": "forbidden"}
"""Either keeps a pinned vCPU's core free of other vCPUs."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole thread or core to book: its core type, and what it is worth in reference cores."""

    core_type: str
    refcores: float


@dataclass(frozen=True, slots=True)
class CoreSizes:
    """What the operator sells.

    ``core_refcores``: speed of the core of which ``shared-core`` promises a share, in reference
    cores; ``dedicated``: what to book for ``dedicated-thread`` and ``dedicated-core``. The vCPUs of
    a CPU type that is missing have to be pinned by Nova.
    """

    core_refcores: float = 1.0
    dedicated: Mapping[str, Whole] = field(default_factory=dict)


def cpu_type(name: str, specs: Mapping[str, str]) -> str | None:
    """The CPU type that a flavor promises: by its extra spec, otherwise by one of its names.

    ``None`` if the extra spec has an unknown value, or if neither names a CPU type.
    """
    if CPU_TYPE in specs:
        return promised if (promised := specs[CPU_TYPE]) in LETTERS.values() else None
    names = [name, *(specs[key] for key in sorted(specs) if _VARIANT.fullmatch(key))]
    letters = (match[1] for name in names if (match := _NAME.fullmatch(name)))
    return next((LETTERS[letter] for letter in letters), None)


def keeping(
    name: str, specs: Mapping[str, str], vcpus: int, sizes: CoreSizes
) -> tuple[dict[str, str], str]:
    """The ``amp:`` keys with which a flavor keeps its promise, and what keeps it, in words.

    The flavor's own keys stay if they suffice: a booking is raised, never lowered.

    Raises:
        BookingInvalid: the promise is unknown, or no booking can keep it; names the remedy.
    """
    own = {key: value for key, value in specs.items() if key.startswith(f"{NAMESPACE}:")}
    promised = cpu_type(name, specs)
    if promised is None:
        raise BookingInvalid(_unknown(specs))
    if promised == "crowded-core":
        return own, "crowded-core promises no share of a core"
    if specs.get(CPU_POLICY) == "mixed":
        raise BookingInvalid(
            f"{CPU_POLICY}=mixed pins some of its vCPUs: remove it, or pin them all"
        )
    if key := own_cpus(specs):
        return own, _pinned(promised, specs, own, f"{key}={specs[key]}")
    if promised == "shared-core":
        # Three decimals are what Placement claims. Without the small term 0.19 / 0.95 is 0.201.
        least = math.ceil(SHARE * sizes.core_refcores / MINUTE_KEPT_RATIO * 1000 - 1e-9) / 1000
        booking = {PREF_CORE: f"{least:g}"}
    elif (whole := sizes.dedicated.get(promised)) is not None:
        least, booking = whole.refcores, {PREF_CORE: f"{whole.refcores:g}"}
        booking[CORE_TYPE] = whole.core_type
    else:
        raise BookingInvalid(
            f"{promised} promises a {promised.removeprefix('dedicated-')} of its own, and a "
            f"booking is a speed: set {CPU_POLICY}=dedicated, or give --{promised} TYPE=REFCORES "
            "to book all of one"
        )
    return _raised(specs, own, vcpus, least, booking), f"at least {least:g} refcores for each vCPU"


def _raised(
    specs: Mapping[str, str],
    own: Mapping[str, str],
    vcpus: int,
    least: float,
    booking: Mapping[str, str],
) -> dict[str, str]:
    """``own`` with a booking of at least ``least`` for each vCPU."""
    if foreign := sorted(key for key in specs if key.startswith(FOREIGN_QUOTA)):
        raise BookingInvalid(f"{foreign[0]} and a booking would both set the CPU quota: remove it")
    for vcpu in parse(specs, vcpus).vcpus:
        if vcpu.ips is not None:
            raise BookingInvalid(
                f"{NAMESPACE}:ips says nothing about a share of a core: remove it, or {CPU_TYPE}"
            )
        key = f"{PREF_CORE}.{vcpu.index}"
        if key in own and (vcpu.refcores or 0.0) < least:
            raise BookingInvalid(f"{key}={own[key]} is less than the promised {least:g}: remove it")
    wrong_type = (
        CORE_TYPE in booking and own.get(CORE_TYPE, booking[CORE_TYPE]) != booking[CORE_TYPE]
    )
    if wrong_type:
        raise BookingInvalid(
            f"{CORE_TYPE}={own[CORE_TYPE]} contradicts {booking[CORE_TYPE]}: remove one of them"
        )
    enough = float(own.get(PREF_CORE, 0.0)) >= least
    return {LIMIT: "soft", **booking, **own, **({} if enough else booking)}


def _pinned(promised: str, specs: Mapping[str, str], own: Mapping[str, str], by: str) -> str:
    """What keeps the promise of a flavor whose vCPUs Nova pins, ``by`` an extra spec."""
    if any(key.startswith((PREF_CORE, f"{NAMESPACE}:ips")) for key in own):
        raise BookingInvalid(
            f"{by} gives a whole pCPU, but the booking limits it: remove the booking"
        )
    if promised == "dedicated-core" and not any(specs.get(k) == v for k, v in _NO_SIBLINGS.items()):
        raise BookingInvalid(
            f"{by} alone lets another vCPU use the core's other thread: set "
            "hw:cpu_thread_policy=isolate"
        )
    return f"Nova keeps it: {by}"


def _unknown(specs: Mapping[str, str]) -> str:
    types = ", ".join(LETTERS.values())
    if CPU_TYPE in specs:
        return f"{CPU_TYPE}={specs[CPU_TYPE]!r} is not in scs-0103: write one of {types}"
    return (
        f"it has neither {CPU_TYPE} nor a name such as SCS-2V-4: set {CPU_TYPE} to one of {types}"
    )
