"""The sensitivities of instances that hosts have measured so far."""

import statistics
from typing import TypeVar

from amp_nova.scheduling.sensitivity import measured_sensitivities
from amp_nova.wire.host_report import HostReport

K = TypeVar("K")
V = TypeVar("V")
INSTANCES_MAX = 200_000
"""At most this many instances are remembered, the most recently measured, even after they end."""
PROFILES_MAX = 10_000
PROFILE_INSTANCES_MAX = 32
"""At most this many instances count in the profile of a flavor and image: the most recent ones."""


class SensitivityHistory:
    """Sensitivities by instance, and by flavor and image. One thread learns, any may read."""

    def __init__(self) -> None:
        self._instances: dict[str, float] = {}
        self._profiles: dict[tuple[str, str], dict[str, float]] = {}

    def learn(self, report: HostReport) -> None:
        """Remember the measurements of a report."""
        profiles: dict[tuple[str, str], dict[str, float]] = {}
        for resource, measured in measured_sensitivities(report).items():
            _put_last(self._instances, resource, measured, INSTANCES_MAX)
            instance = report.by_uuid[resource]
            if instance.image:
                key = (instance.flavor, instance.image)
                # A copy, since another thread may be reading the old one.
                profile = profiles.pop(key, None) or dict(self._profiles.get(key, {}))
                _put_last(profile, resource, measured, PROFILE_INSTANCES_MAX)
                profiles[key] = profile
        for key, profile in profiles.items():
            _put_last(self._profiles, key, profile, PROFILES_MAX)

    def sensitivity(self, resource: str, flavor: str, image: str) -> float | None:
        """An instance's own sensitivity, else the median of its flavor and image.

        ``None`` if neither has been measured.
        """
        if (own := self._instances.get(resource)) is not None:
            return own
        profile = self._profiles.get((flavor, image)) if image else None
        return statistics.median(profile.values()) if profile else None


def _put_last(found: dict[K, V], key: K, value: V, most: int) -> None:
    """Make an entry the newest of a dictionary, and drop the oldest one beyond ``most``."""
    found.pop(key, None)
    found[key] = value
    if len(found) > most:
        del found[next(iter(found))]
