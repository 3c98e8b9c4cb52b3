# SPDX-License-Identifier: Apache-2.0
"""What a scheduler worker counts, as a file for the textfile collector of node_exporter.

Nova's scheduler serves no HTTP, and its workers share a host: each writes a file of its own, and
removes those of workers that have ended.
"""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from amp_nova.nova_plugins.host_states import HostStates

INTERVAL_S = 15.0
PREFIX = "amp-nova-scheduler-"
Outcome = Literal["passed", "invalid", "no_report", "capacity"]
"""Of a request with a booking or a core type. The last two say why most hosts refused it, if no
host passed."""


class Metrics:
    """Counts requests, and collects what ``HostStates`` knows of reports and hosts."""

    def __init__(self, states: HostStates) -> None:
        self._states = states
        self.requests: Counter[Outcome] = Counter()

    def collect(self) -> Iterable[Metric]:
        """The values now, each with the label of this worker."""
        for name, text, label, values in (
            ("requests", "Requests that the filter answered.", "outcome", self.requests.copy()),
            ("reports", "Host reports received.", "outcome", self._states.reports.copy()),
            ("hosts", "Hosts that have reported.", "state", self._states.hosts()),
            ("pending_instances", "Instances on their way.", "", {"": len(self._states.pending())}),
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
