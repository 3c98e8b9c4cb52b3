"""The limit of a vCPU that books instructions per second, and what decides it."""

from dataclasses import dataclass

from amp_nova.control import ips_controller
from amp_nova.control.homes import Vcpu
from amp_nova.model.bandwidth import Bandwidth, bandwidth, period_us
from amp_nova.model.topology import CoreType, Topology


@dataclass(frozen=True, slots=True)
class IpsLimit:
    """A limit and the reason for it.

    ``unverifiable``: why the booking cannot be verified, and what limits the vCPU instead;
    ``governed``: whether the Ips controller sets the limit from counted instructions.
    """

    bandwidth: Bandwidth | None
    reason: str
    unverifiable: str | None = None
    governed: bool = False


def decide(
    vcpu: Vcpu,
    core_type: CoreType | None,
    topology: Topology,
    last: Bandwidth | None,
    fallback: str,
) -> IpsLimit:
    """The limit of a vCPU on a core type.

    Args:
        vcpu: the vCPU, and whether its instructions are counted.
        core_type: where it shall run; ``None`` if its booking cannot be converted to capacity.
        topology: the host's core types and pCPUs.
        last: the Ips controller's last decision, or the limit in force when it takes over.
        fallback: what limits a vCPU whose instructions are not counted: ``nominal`` or ``none``.
    """
    ips = vcpu.booking.ips or 0.0
    booked, uncounted = f"{ips:g} Ips", None
    if vcpu.facts.uncounted is not None:
        because = f" ({vcpu.facts.uncounted})" if vcpu.facts.uncounted else ""
        uncounted = f"unverifiable: its instructions are not counted{because}"
    if vcpu.instance.booking.limit == "soft":
        return IpsLimit(None, f"{booked}, soft", uncounted)
    if uncounted is None:
        limit = _counted(vcpu, core_type, topology, last)
        return IpsLimit(limit, f"{booked}, enforced by counting", governed=True)
    if fallback != "nominal":
        return IpsLimit(None, f"{booked}, not limited", f"{uncounted}, and ips_fallback is none")
    nominal = core_type.nominal_ips if core_type else None
    if nominal is None:
        why = f"{uncounted}, and no nominal Ips are known: run amp-nova calibrate"
        return IpsLimit(None, f"{booked}, not limited", why)
    share = ips / nominal
    return IpsLimit(
        bandwidth(share, period_us(min(1.0, share))),
        f"{booked} / {nominal:g} nominal Ips",
        f"{uncounted}, so nominal Ips limit it (ips_fallback is nominal)",
    )


def _counted(
    vcpu: Vcpu, core_type: CoreType | None, topology: Topology, last: Bandwidth | None
) -> Bandwidth:
    """The limit ``last``, scaled by nominal Ips if the vCPU moves to another core type.

    A vCPU without a limit gets the one that is right for nominal Ips.
    """
    nominal = core_type.nominal_ips if core_type else None
    if last is None:
        share = ips_controller.first_share(vcpu.booking.ips or 0.0, nominal)
        return ips_controller.limit(share)
    now = topology.only_type(vcpu.facts.pcpus)
    if now is None or core_type is None or now.name == core_type.name:
        return last
    if nominal is None or now.nominal_ips is None:
        return last
    return ips_controller.limit(min(1.0, last.cores * now.nominal_ips / nominal))
