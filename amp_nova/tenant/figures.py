# SPDX-License-Identifier: Apache-2.0
"""What a server books and gets, from the samples of its series; pure functions.

Means come from the samples themselves, without the extrapolation of PromQL's ``rate``, so that they
equal what the host counted.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

WINDOW_S = 300
GAP_S = 90.0
"""Samples that are further apart than this have a gap between them, which is left out."""
_REFERENCE = "instance_reference_cpu_seconds_total"
_CPU = "instance_cpu_seconds_total"
_SHORTFALL = "instance_shortfall_refcore_seconds_total"
_THROTTLED = "instance_throttled_seconds_total"
_GAUGES = "instance_(booked|delivered)_(refcores|ips)"
_NEIGHBOURS = ("contention", "smt")
"""Causes of a shortfall that are neighbours; all others are the host's."""

Samples = Sequence[tuple[float, float]]
SamplesBySeries = Mapping[tuple[str, str, str], Samples]
"""By scrape target, metric without its prefix, and the value of the metric's own label."""


class Series(Struct):
    """A series as Prometheus returns it: samples of a range, or one value."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] = (0.0, "NaN")


def queries(server: str, project: str) -> tuple[str, str]:
    """The samples of a server's series, and the coefficients of the host that it is on.

    The identifiers must have been checked: they become part of the expressions.
    """
    own = f'resource="{server}",project="{project}"'
    names = "|".join((_REFERENCE, _CPU, _SHORTFALL, _THROTTLED, _GAUGES))
    return (
        f'{{__name__=~"amp_({names})",{own}}}[{WINDOW_S}s]',
        f"amp_core_type_coefficient_ratio and on (job, instance) amp_{_CPU}{{{own}}}",
    )


def on_host(series: Sequence[Series], host_id: str, project: str) -> list[Series]:
    """The series of the host that Nova names, if the scrape job gives hosts their names.

    ``host_id``: what Nova shows, a hash of project and host; empty if it does not tell.
    A host may export what it likes, but the scrape job sets its label ``host``.
    """

    def named(host: str) -> bool:
        names = (f"{project}{name}".encode() for name in (host, host.split(".")[0]))
        return host_id in (hashlib.sha224(name).hexdigest() for name in names)

    hosts = {each.metric.get("host", "") for each in series}
    if host_id and any(hosts):
        hosts = {host for host in hosts if named(host)}
    elif len(hosts) > 1:  # nobody says which of them is right
        hosts = set()
    return [each for each in series if each.metric.get("host", "") in hosts]


def figures(series: Sequence[Series], coefficients: Sequence[Series]) -> dict[str, Any]:
    """The figures by name; ``measured_s`` is the time of the last sample. Empty if nothing is.

    A server that moved has series of two hosts: those of the last sample say what is in force.
    """
    by_series = _by_series(series)
    if not by_series:
        return {}
    target = max(by_series, key=lambda key: by_series[key][-1][0])[0]
    here = {key[1:]: samples for key, samples in by_series.items() if key[0] == target}
    values = _means(by_series)
    for (name, _), samples in here.items():
        if name.startswith(("instance_booked_", "instance_delivered_")):
            quantity = name.removeprefix("instance_").replace("delivered", "last_delivered")
            values[quantity] = samples[-1][1]
    core_type = _core_type(here)
    for each in coefficients:
        if (each.metric.get("instance"), each.metric.get("core_type")) == (target, core_type):
            values["coefficient"] = float(each.value[1])
    finite = {name: float(f"{v:.5g}") for name, v in values.items() if math.isfinite(v)}
    at_s = max(samples[-1][0] for samples in here.values())
    return {"measured_s": at_s, **finite, **({"current_core_type": core_type} if core_type else {})}


def _by_series(series: Sequence[Series]) -> SamplesBySeries:
    """Samples that are numbers; of a target that is scraped twice, the longer series."""
    by_series: dict[tuple[str, str, str], Samples] = {}
    for each in series:
        labels = each.metric
        own = next((labels[k] for k in ("core_type", "cause") if k in labels), "")
        key = labels.get("instance", ""), labels.get("__name__", "").removeprefix("amp_"), own
        samples = [(at_s, v) for at_s, text in each.values if math.isfinite(v := float(text))]
        if len(samples) > len(by_series.get(key, ())):
            by_series[key] = samples
    return by_series


def _steps(samples: Samples) -> Iterator[tuple[float, float]]:
    """Growth of a counter and seconds, from one sample to the next; a restart begins at 0."""
    for (before_s, before), (at_s, value) in pairwise(samples):
        if 0.0 < at_s - before_s <= GAP_S:
            yield value - before if value >= before else value, at_s - before_s


def _means(by_series: SamplesBySeries) -> dict[str, float]:
    """Means over the seconds that were observed, on whichever host."""
    window_s, grown = 0.0, defaultdict[str, float](float)
    for (_, name, label), samples in by_series.items():
        amount = sum(amount for amount, _ in _steps(samples))
        if name == _REFERENCE:
            grown["delivered_refcores"] += amount
            window_s += sum(seconds for _, seconds in _steps(samples))
        elif name == _THROTTLED:
            grown["throttled_vcpus"] += amount
        elif name == _SHORTFALL:  # there is none without a booking
            whose = "neighbours" if label in _NEIGHBOURS else "host"
            grown[f"missed_refcores_{whose}"] += amount
    if not window_s:
        return {}
    means = {name: amount / window_s for name, amount in grown.items()}
    return {"window_s": window_s, **means}


def _core_type(here: Mapping[tuple[str, str], Samples]) -> str | None:
    """The core type that it used most between the last two samples, or else so far."""
    usage = {}
    for (name, core_type), samples in here.items():
        if name == _CPU:
            usage[core_type] = (sum(a for a, _ in _steps(samples[-2:])), samples[-1][1])
    return max(usage, key=lambda name: usage[name]) if usage else None
