"""Counts and logs what a scheduler refused, by host and reason."""

import logging
import threading
from collections import Counter
from collections.abc import Callable

LOG = logging.getLogger(__name__)
LOG_EVERY_S = 60.0
HOSTS_MAX = 1000
"""At most this many pairs of host and reason are counted; the rest are counted together."""
OTHERS = "other hosts"
NOBODY = "an unknown sender"


class Refusals:
    """Refused reports; thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged_s: dict[tuple[str, str], float] = {}
        self.by_host: Counter[tuple[str, str]] = Counter()
        """By host and kind: old, unknown_host, version, malformed, oversized, unusable. ``NOBODY``
        stands for a report that names no host."""

    def by_kind(self) -> Counter[str]:
        """The sums over hosts."""
        counts: Counter[str] = Counter()
        with self._lock:
            for (_, kind), count in self.by_host.items():
                counts[kind] += count
        return counts

    def add(self, node: str, kind: str, why: object) -> None:
        """Count a refusal; log it once a minute for each host and kind."""
        with self._lock:
            key = (node or NOBODY, kind)
            if key not in self.by_host and len(self.by_host) >= HOSTS_MAX:
                key = (OTHERS, kind)
            self.by_host[key] += 1
            count, now_s = self.by_host[key], self._clock()
            if now_s - self._logged_s.get(key, -LOG_EVERY_S) < LOG_EVERY_S:
                return
            self._logged_s[key] = now_s
        LOG.warning("%s; %d of this kind from %s so far", why, count, key[0])
