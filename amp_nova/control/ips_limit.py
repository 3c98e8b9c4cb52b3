"""Who limits a vCPU that books instructions per second, and what the limit is to begin with."""

from dataclasses import dataclass

from amp_nova.control import ips_controller
from amp_nova.model import bandwidth as bandwidth_
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import VcpuReading
from amp_nova.model.topology import CoreType, Topology

FALLBACKS = ("nominal", "none")


@dataclass(frozen=True, slots=True)
class Terms:
    """How the operator wants such bookings kept.

    ``fallback``: what limits a vCPU whose instructions nothing counts, one of ``FALLBACKS``;
    ``counts``: whether there is a fast loop, to keep bookings by counting.
    """

    fallback: str = "nominal"
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Begin:
    """A limit to begin with, and why.

    ``unverifiable``: what is not known of the booking, and what is done about it; ``governed``:
    whether the fast loop sets the limit from then on.
    """

    bandwidth: Bandwidth | None
    why: str
    unverifiable: str | None = None
    governed: bool = False


def begin(
    booked_ips: float,
    limit: str,
    reading: VcpuReading,
    core_type: CoreType | None,
    topology: Topology,
    terms: Terms,
) -> Begin:
    """The limit of a vCPU on a core type; ``None`` for one that nobody knows the room of.

    Where its instructions are counted, the fast loop limits it. Else nominal Ips do, or nothing,
    as configured: that is said and never passed off as a booking that is kept.
    """
    booked = f"{booked_ips:g} Ips"
    uncounted = None
    if reading.counts is None or not terms.counts:
        because = f" ({reading.uncounted})" if reading.uncounted else ""
        uncounted = f"unverifiable: nothing counts its instructions{because}"
    if limit == "soft":
        return Begin(None, f"{booked}, soft", uncounted)
    if uncounted is None:
        bandwidth = _governed(booked_ips, reading, core_type, topology)
        return Begin(bandwidth, f"{booked}, kept by counting", governed=True)
    if terms.fallback != "nominal":
        return Begin(None, f"{booked}, not limited", f"{uncounted}, and ips_fallback is none")
    nominal = core_type.nominal_ips if core_type else None
    if nominal is None:
        why = f"{uncounted}, and no nominal Ips are known: run amp-nova calibrate"
        return Begin(None, f"{booked}, not limited", why)
    share = booked_ips / nominal
    bandwidth_us = bandwidth_.bandwidth(share, bandwidth_.period_us(min(1.0, share)))
    return Begin(
        bandwidth_us,
        f"{booked} / {nominal:g} nominal Ips",
        f"{uncounted}, so nominal Ips limit it (ips_fallback is nominal)",
    )


def _governed(
    booked_ips: float, reading: VcpuReading, core_type: CoreType | None, topology: Topology
) -> Bandwidth:
    """It keeps the limit it has; on another core type it gets as much less as that is faster.

    One without a limit gets what is right for nominal work.
    """
    nominal = core_type.nominal_ips if core_type else None
    now = topology.only_type(reading.pcpus)
    if reading.bandwidth is None:
        return ips_controller.limit(ips_controller.first_share(booked_ips, nominal))
    if now is None or core_type is None or now.name == core_type.name:
        return reading.bandwidth
    if nominal is None or now.nominal_ips is None:
        return reading.bandwidth
    return ips_controller.limit(min(1.0, reading.bandwidth.cores * now.nominal_ips / nominal))
