"""What a scheduler worker counts, as a file for the textfile collector of node_exporter.

Nova's scheduler serves no HTTP, and its workers share a host: each writes a file of its own, and
removes those of workers that have ended. Refused reports are logged here, too.
"""

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from amp_nova.nova_plugins.host_states import HostStates

LOG = logging.getLogger(__name__)
INTERVAL_S = 15.0
PREFIX = "amp-nova-scheduler-"
LOG_EVERY_S = 60.0
HOSTS_MAX = 1000
"""At most this many pairs of host and reason are counted; the rest are counted together."""
OTHERS = "other hosts"
NOBODY = "an unknown sender"
Outcome = Literal["passed", "invalid", "no_report", "capacity"]
"""Of a request with a booking or a core type. The last two say why most hosts refused it, if no
host passed."""


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


class Metrics:
    """Counts requests, and collects what ``HostStates`` knows of reports and hosts."""

    def __init__(self, states: "HostStates") -> None:
        self._states = states
        self.requests: Counter[Outcome] = Counter()

    def collect(self) -> Iterable[Metric]:
        """The values now, each with the label of this worker."""
        received = {"accepted": self._states.accepted, **self._states.rejected.by_kind()}
        pending = {"": len(self._states.pending())}
        for name, text, label, values in (
            ("requests", "Requests that the filter answered.", "outcome", self.requests.copy()),
            ("reports", "Host reports received.", "outcome", received),
            ("hosts", "Hosts that have reported.", "state", self._states.hosts()),
            ("pending_instances", "Instances that their host has not reported.", "", pending),
        ):
            kind = CounterMetricFamily if label == "outcome" else GaugeMetricFamily
            labels = ["worker", label] if label else ["worker"]
            family = kind(f"amp_scheduler_{name}", text, labels=labels)
            for value, count in values.items():
                family.add_metric([str(os.getpid()), value][: len(labels)], count)
            yield family


def write(metrics: Metrics, folder: Path) -> None:
    """Write this worker's file, and remove those of ended workers; raises ``OSError``."""
    registry = CollectorRegistry()
    registry.register(metrics)
    write_to_textfile(str(folder / f"{PREFIX}{os.getpid()}.prom"), registry)
    for file in folder.glob(f"{PREFIX}*.prom"):
        if not Path("/proc", file.stem.removeprefix(PREFIX)).exists():
            file.unlink(missing_ok=True)


def write_until(stopped: threading.Event, metrics: Metrics, folder: Path) -> None:
    """Write the file again and again; remove it at the end."""
    failed = ""
    while True:
        try:
            write(metrics, folder)
            failed = ""
        except OSError as exc:
            if f"{exc}" != failed:
                LOG.warning("the scheduler's metrics cannot be written to %s: %s", folder, exc)
            failed = f"{exc}"
        if stopped.wait(INTERVAL_S):
            break
    with contextlib.suppress(OSError):
        (folder / f"{PREFIX}{os.getpid()}.prom").unlink()
