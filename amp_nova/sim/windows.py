"""What booked guests were owed and got, second by second, as their tenants would measure it."""

import math
from dataclasses import dataclass

from amp_nova.accounting.delivery import DEMAND_LEAST_RATIO, owed
from amp_nova.flavor.extra_specs import Booking
from amp_nova.model.observation import Usage
from amp_nova.model.topology import Topology
from amp_nova.sim.counters import REFERENCE_IPS
from amp_nova.sim.guest import Meter

WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """Delivered over booked capacity of one guest: over the run, and of its extreme windows."""

    ratio: float | None = None
    least: float | None = None
    most: float | None = None


class Windows:
    """One guest's windows. Several vCPUs count together: the ratio of their sums.

    Instructions are counted as the seconds that they take the reference core, so that vCPUs with
    bookings of both kinds can be added up.
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
        nothing = Meter((0.0,) * len(self._coefficients), 0.0, 0.0, 0.0, 0.0)
        self._before = (nothing,) * len(self._refcores)
        self._owed_ref_s = 0.0
        self._delivered_ref_s = 0.0
        self._least = math.inf
        self._most = -math.inf
        self.last: float | None = None
        """Ratio of the last window, ``None`` when nothing was wanted in it."""

    @property
    def booked(self) -> bool:
        """Whether there is anything to measure."""
        return any(r is not None for r in self._refcores)

    @property
    def refcores(self) -> float | None:
        """What is booked in all, ``None`` when nothing is."""
        booked = [r for r in self._refcores if r is not None]
        return sum(booked) if booked else None

    def close(self, meters: tuple[Meter, ...], wall_s: float) -> None:
        """End a window; one that is shorter than the others counts for the run only."""
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
        # One that moved within the window has run on a mixture of core types.
        delivered = sum(s * c for s, c in zip(by_type, self._coefficients, strict=True))
        if counted:
            delivered = (after.instructions - before.instructions) / self._reference_ips
        run_s = sum(by_type)
        waited_s, throttled_s = after.wait_s - before.wait_s, after.throttled_s - before.throttled_s
        used = Usage(wall_s, run_s, waited_s, throttled_s)
        return delivered, owed(used, refcores, delivered)

    def result(self) -> Delivered:
        """What was delivered so far; nothing is known where nothing is booked or was wanted."""
        if not self.booked or not self._owed_ref_s:
            return Delivered()
        whole = self._most > -math.inf
        return Delivered(
            self._delivered_ref_s / self._owed_ref_s,
            self._least if whole else None,
            self._most if whole else None,
        )
