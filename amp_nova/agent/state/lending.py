"""What booked vCPUs leave of the room that they were packed into, for best effort to use.

Best effort runs in what bookings leave at any moment: the kernel gives a booked vCPU its time back
at once. What is decided here is only where best effort looks for time: a fast core whose booking
sleeps is as good as a free one.
"""

from collections.abc import Mapping

from amp_nova.agent.state.idle_capacity import Vacancies
from amp_nova.control.entitlement import Promise
from amp_nova.model.observation import VcpuKey

USUAL_S = 30.0
"""A booking that is used more than before counts at once, one that is used less about so late."""
BACK_LEAST_RATIO = 0.2
"""Who wants to run for so much of a look is back; idle guests wake up for a moment now and then."""
WORTH_LEAST_CORES = 0.25
"""A booking below this leaves too little for a decision of its own when it falls asleep."""


class Lending:
    """Remembers how much of its room every booked vCPU usually uses."""

    def __init__(self) -> None:
        self._used_cores: dict[VcpuKey, float] = {}
        self._asleep: set[VcpuKey] = set()
        self._awake: dict[VcpuKey, frozenset[int]] = {}

    def lend(
        self,
        promises: Mapping[VcpuKey, Promise],
        wanted: Mapping[VcpuKey, float],
        vacancies: Vacancies,
        elapsed_s: float,
    ) -> dict[VcpuKey, float]:
        """Cores in use of every booked vCPU that has a place.

        ``wanted``: share of the time since the last decision that each wanted to run.
        """
        used: dict[VcpuKey, float] = {}
        asleep: set[VcpuKey] = set()
        awake: dict[VcpuKey, frozenset[int]] = {}
        for key, promise in promises.items():
            if promise.pcpu is None or promise.cores is None:
                continue
            before = self._used_cores.get(key, promise.cores)
            lately = max(wanted.get(key, promise.cores), vacancies.wanted_ratio(key))
            now = min(promise.cores, lately)
            slowly = before + min(1.0, elapsed_s / USUAL_S) * (now - before)
            used[key] = min(promise.cores, max(now, slowly))
            if vacancies.asleep(key):
                asleep.add(key)
            elif promise.cores >= WORTH_LEAST_CORES:
                awake[key] = frozenset({promise.pcpu})
        self._used_cores, self._asleep, self._awake = used, asleep, awake
        return {key: 0.0 if key in asleep else cores for key, cores in used.items()}

    def back(self, vacancies: Vacancies) -> bool:
        """Whether one that slept at the last decision has come back to more than a glance."""
        return any(vacancies.wanted_ratio(key) >= BACK_LEAST_RATIO for key in self._asleep)

    @property
    def places(self) -> Mapping[VcpuKey, frozenset[int]]:
        """The pCPUs of large ones that were awake at the last decision."""
        return self._awake
