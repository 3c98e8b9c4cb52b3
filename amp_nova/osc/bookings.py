# SPDX-License-Identifier: Apache-2.0
"""What flavors book, in words and in claims; pure functions over extra specs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from amp_nova.flavor.extra_specs import NAMESPACE, Booking, VcpuBooking, examine, near_misses
from amp_nova.flavor.placement_resources import (
    PLACEMENT_CLASS,
    PLACEMENT_GROUP,
    claim_specs,
    placement,
    remarks,
)
from amp_nova.model.bandwidth import reference_delay_s
from amp_nova.osc.cloud import Flavor

CLAIM_KEY = f"resources_{PLACEMENT_GROUP}:{PLACEMENT_CLASS}"


def own_specs(specs: Mapping[str, str]) -> dict[str, str]:
    """The ``amp:`` keys of a flavor."""
    return {k: v for k, v in specs.items() if k.startswith(f"{NAMESPACE}:")}


def claimed(flavor: Flavor) -> int | None:
    """What a server of the flavor claims, in thousandths of a reference core.

    A booking in reference cores without a claim counts as what it would claim. ``None`` for a
    booking in Ips without a claim, 0 for best effort.
    """
    if (units := flavor.specs.get(CLAIM_KEY, "")).isdecimal():
        return int(units)
    booking = flavor.booking
    if booking is None or not booking.booked:
        return 0
    units = placement(booking).get(CLAIM_KEY, "")
    return int(units) if units else None


def in_refcores(flavor: Flavor) -> Booking | None:
    """The booking, with Ips converted to the reference cores that the flavor claims for them.

    ``None`` if the flavor cannot be interpreted, or claims nothing for its Ips.
    """
    booking = flavor.booking
    if booking is None or all(v.ips is None for v in booking.vcpus):
        return booking
    units = flavor.specs.get(CLAIM_KEY, "")
    if not units.isdecimal():
        return None
    ips = sum(v.ips or 0.0 for v in booking.vcpus)
    refcores = sum(v.refcores or 0.0 for v in booking.vcpus)
    ratio = max(0.0, int(units) / 1000 - refcores) / ips
    vcpus = (v if v.ips is None else VcpuBooking(v.index, v.ips * ratio) for v in booking.vcpus)
    return replace(booking, vcpus=tuple(vcpus))


def delay_ms(flavor: Flavor) -> int | None:
    """How far one of its vCPUs may fall behind a reference core of the speed that it books."""
    booking = in_refcores(flavor)
    if booking is None or booking.limit == "soft":
        return None
    delays_s = [reference_delay_s(v.refcores) for v in booking.vcpus]
    return max((round(1e3 * s) for s in delays_s if s is not None), default=None)


def problems(flavor: Flavor) -> list[str]:
    """What is wrong with the flavor: its extra specs, or claims that do not match them."""
    booking, errors = examine(flavor.specs, flavor.vcpus)
    if booking is None:
        return list(errors)
    return [*near_misses(flavor.specs), *remarks(booking), *_claim_problems(flavor, booking)]


def _claim_problems(flavor: Flavor, booking: Booking) -> list[str]:
    claim, in_ips = claim_specs(flavor.specs), any(v.ips is not None for v in booking.vcpus)
    expected = placement(booking)
    if claim == expected:
        if in_ips:
            return ["it claims nothing in Placement: set it with --reference-ips"]
        return []
    if in_ips and CLAIM_KEY in claim:  # the Ips of the reference core are not known here
        ips, refcores = sum(v.ips or 0.0 for v in booking.vcpus), int(claim[CLAIM_KEY]) / 1000
        as_claimed = placement(booking, ips / max(refcores, 1e-3))
        expected = {**as_claimed, CLAIM_KEY: claim[CLAIM_KEY]}
    if not claim:
        return ["it claims nothing in Placement: two schedulers may give its capacity twice"]
    different = sorted(k for k in {*claim, *expected} if claim.get(k) != expected.get(k))
    return [
        f"{key} is {claim.get(key, 'missing')}, its booking needs {expected.get(key, 'none')}"
        for key in different
    ]


def words(flavor: Flavor) -> str:
    """The booking, or why there is none: the agent treats such a server as best effort."""
    booking, errors = examine(flavor.specs, flavor.vcpus)
    if booking is None:
        return f"invalid: {'; '.join(errors)}"
    return "; ".join([described(booking), *near_misses(flavor.specs)])


def described(booking: Booking) -> str:
    """The booking of every vCPU in a few words, such as ``2 x 0.5 refcores``."""
    counts = Counter(_vcpu(v) for v in booking.vcpus)
    return ", ".join(text if n == 1 else f"{n} x {text}" for text, n in counts.items())


def _vcpu(vcpu: VcpuBooking) -> str:
    if vcpu.refcores is not None:
        return f"{vcpu.refcores:g} refcores"
    if vcpu.ips is None:
        return "best effort"
    size = next(((n, u) for n, u in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if vcpu.ips >= n), None)
    return f"{vcpu.ips / size[0]:g}{size[1]} Ips" if size else f"{vcpu.ips:g} Ips"
