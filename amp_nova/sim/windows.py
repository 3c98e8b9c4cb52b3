"""What booked guests were owed and got, second by second, as their tenants would measure it."""

import math
from dataclasses import dataclass

from amp_nova.accounting.delivery import DEMAND_LEAST_RATIO, owed
from amp_nova.flavor.extra_specs import Booking
from amp_nova.model.observation import Usage
from amp_nova.model.topology import Topology
from amp_nova.sim.counters import REFERENCE_IPS
from amp_nova.sim.vcpu import Meter

WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """Delivered over booked capacity of one guest: over the run, and in its extreme windows."""

    ratio: float | None = None
    least: float | None = None
    most: float | None = None


class Windows:
    """The windows of one guest. Several vCPUs count together, as the ratio of their sums.

    Instructions count as the seconds they take the reference core, so that vCPUs with bookings of
    both kinds can be added up.
    """

    def __init__(
        self, booking: Booking, topology: Topology, reference_ips: float | None = None
    ) -> None:
        self._reference_ips = reference_ips or REFERENCE_IPS
        self._counted = [v.ips is not None for v in booking.vcpus]
        self._refcores = [
            v.refcores if v.ips is None else v.ips / self._reference_ips for v in booking.vcpus
        ]
        self._coefficients = [t.coefficient or 0.0 for t in topology.core_types]
        nothing = (0.0,) * len(self._coefficients)
        self._before = (Meter(nothing, full_speed_s=nothing),) * len(self._refcores)
        self._owed_ref_s = 0.0
        self._delivered_ref_s = 0.0
        self._least = math.inf
        self._most = -math.inf
        self.last: float | None = None
        """Ratio of the last window, ``None`` without demand in it."""

    def close(self, meters: tuple[Meter, ...], wall_s: float) -> None:
        """End a window; one that is shorter than usual counts only in the ratio of the run."""
        owed, delivered, booked = 0.0, 0.0, 0.0
        vcpus = zip(self._refcores, self._counted, self._before, meters, strict=True)
        for refcores, counted, before, after in vcpus:
            if refcores is None:
                continue
            got, wanted = self._vcpu(before, after, refcores, wall_s, counted=counted)
            delivered += got
            owed += wanted
            booked += refcores
        self._before = meters
        self._owed_ref_s += owed
        self._delivered_ref_s += delivered
        demanded = owed > DEMAND_LEAST_RATIO * booked * wall_s
        self.last = delivered / owed if demanded else None
        if self.last is not None and wall_s >= WINDOW_S * 0.999:
            self._least = min(self._least, self.last)
            self._most = max(self._most, self.last)

    def _vcpu(
        self, before: Meter, after: Meter, refcores: float, wall_s: float, *, counted: bool
    ) -> tuple[float, float]:
        """Delivered and owed, in reference-core seconds."""
        by_type = [b - a for a, b in zip(before.run_s, after.run_s, strict=True)]
        if counted:
            delivered = (after.instructions - before.instructions) / self._reference_ips
        else:
            # A vCPU that moved within the window ran on several core types.
            worth = zip(before.full_speed_s, after.full_speed_s, self._coefficients, strict=True)
            delivered = sum((b - a) * c for a, b, c in worth)
        waited_s, throttled_s = after.wait_s - before.wait_s, after.throttled_s - before.throttled_s
        used = Usage(wall_s, sum(by_type), waited_s, throttled_s)
        return delivered, owed(used, refcores, delivered)

    def result(self) -> Delivered:
        """What was delivered so far; all ``None`` without a booking or without demand."""
        if not self._owed_ref_s:
            return Delivered()
        ratio = self._delivered_ref_s / self._owed_ref_s
        if self._most == -math.inf:
            return Delivered(ratio)
        return Delivered(ratio, self._least, self._most)
