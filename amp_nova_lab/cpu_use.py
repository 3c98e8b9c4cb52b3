# SPDX-License-Identifier: Apache-2.0
"""The CPU time that instances used, from a Prometheus that scrapes libvirt exporters.

It computes each mean once; figures are made of them here, because it would not share them.
"""

import json
import netrc
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from amp_nova.exceptions import AmpError, ConfigInvalid
from amp_nova.prometheus import Prometheus, QueryFailed

INFO = ("libvirt_domain_info_meta", "libvirt_domain_openstack_info")
"""Nova's names of a domain, in labels that are called differently."""
VCPUS = "libvirt_domain_info_virtual_cpus"
VCPU_TIME = "libvirt_domain_vcpu_time_seconds_total"
DOMAIN_TIME = "libvirt_domain_info_cpu_time_seconds_total"
INSTALL = """install prometheus-libvirt-exporter or Tinkoff's libvirt-exporter on the compute nodes
(enable_prometheus_libvirt_exporter in kolla-ansible), and scrape it"""
TIMEOUT_S, BYTES_MAX, QUERIES_AT_ONCE, NAME_MAX, VCPUS_MAX = 60, 64 << 20, 4, 64, 4096
MEANS_MAX, POINTS_MAX = 1_000_000, 11_000
"""Means that Prometheus computes for a query, and its own limit of those in a series."""
VCPU_CORES_MAX = 2.0

T = TypeVar("T")
Series = tuple[Mapping[str, str], list[float]]
Key = tuple[str, str]  # a host and a domain, as labels have them
Row = dict[str, Any]  # an instance or a flavor, as in the document that -f json prints


class RangeQueries:
    """Answers queries about now, and about ``points`` in time that are ``step_s`` apart."""

    def __init__(self, url: str, days: float, step_s: int) -> None:
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            entry = netrc.netrc().authenticators(parts.hostname or "")
        except (ValueError, OSError) as exc:
            valid, entry = isinstance(exc, OSError) and valid, None  # there may be no ~/.netrc
        except netrc.NetrcParseError as exc:
            raise ConfigInvalid(f"~/.netrc is not valid: {exc}; correct it") from exc
        if not valid or "@" in url or re.search("[^!-~]", url):
            remedy = "write http://HOST:PORT, and user and password in ~/.netrc"
            raise ConfigInvalid(f"{url!r} is not the address of a Prometheus: {remedy}")
        user = f"{quote(entry[0], '')}:{quote(entry[2], '')}@" if entry else ""
        self._prometheus = Prometheus(url.replace("://", f"://{user}", 1))
        self.url, self.step_s = self._prometheus.url, step_s
        self.points = round(days * 86400 / step_s)
        self._now = round(time.time(), 3)
        if not 1 <= self.points <= POINTS_MAX:
            raise ConfigInvalid(f"{days:g} days are not 1 to {POINTS_MAX} steps of {step_s} s")

    def series(self, expression: str, points: int = 1) -> list[Series]:
        """Labels and values of every series at so many points until now; raises ``AmpError``."""
        start, end = self._now - (points - 1) * self.step_s, self._now
        at = {"query": expression, "start": start, "end": end, "step": self.step_s}
        try:
            return [
                ({k: str(v) for k, v in s["metric"].items()}, [float(v) for _, v in s["values"]])
                for s in self._prometheus.query("query_range", TIMEOUT_S, BYTES_MAX, **at)
            ]
        except QueryFailed as exc:
            if exc.status == 200:
                raise AmpError(f"{self.url}: {exc}: give the address of one") from exc
            if not exc.status:
                raise AmpError(f"{self.url} does not answer: {exc}; check the address") from exc
            remedy = "; ask for less with --days or a longer --step" * (exc.status in (422, 503))
            raise AmpError(f"{self.url} answered {exc.status}: {exc}{remedy}") from exc
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise AmpError(f"{self.url}: it is not Prometheus: give the address of one") from exc


def _key(labels: Mapping[str, str]) -> Key:
    return labels.get("instance", ""), labels.get("domain", "")


def _shown(text: str) -> str:
    """A label for people: short, and without characters that a terminal obeys."""
    return "".join(c if c.isprintable() else "?" for c in text[:NAME_MAX])


def instances(prometheus: RangeQueries, bookings: Mapping[str, float]) -> dict[Key, Row]:
    """The instances that run now and whose flavor matches a pattern of ``bookings``."""
    info = prometheus.series(f'{{__name__=~"{"|".join(INFO)}"}}')
    if not info:
        raise AmpError(f"{prometheus.url} has no {' and no '.join(INFO)}: {INSTALL}")
    vcpus = {_key(labels): counts[0] for labels, counts in prometheus.series(VCPUS) if counts}
    rows, flavors = dict[Key, Row](), set[str]()
    for labels, _ in info:
        flavor = labels.get("flavor") or labels.get("flavor_name", "")
        key, uuid = _key(labels), labels.get("uuid") or labels.get("instance_id", "")
        flavors.add(_shown(flavor))
        refcores = next((c for p, c in bookings.items() if fnmatchcase(flavor, p)), None)
        if flavor and refcores is not None and 1.0 <= vcpus.get(key, 0.0) <= VCPUS_MAX:
            name, project = labels.get("instance_name") or key[1], labels.get("project_name", "")
            row = {"flavor": flavor, "instance": name, "uuid": uuid, "project": project}
            rows[key] = {n: _shown(text) for n, text in (row | {"host": key[0]}).items()}
            rows[key] |= {"vcpus": int(vcpus[key]), "refcores": refcores}
    if not rows:
        names = ", ".join(sorted(flavors - {""})[:20])
        raise AmpError(f"no instance has a flavor of --booking: the flavors are {names or 'none'}")
    return dict(sorted(rows.items()))


def plausible(used: Sequence[float]) -> bool:
    """Whether means of a counter can be what a vCPU used.

    No vCPU uses two cores: some exporters count its time in nanoseconds. Some seldom ask libvirt:
    then a counter does not move for much of the time, and by too much at other times.
    """
    idle = sum(u == 0.0 for u in used)
    possible = bool(used) and all(0.0 <= u < VCPU_CORES_MAX for u in used)  # no NaN either
    return possible and (idle <= len(used) / 4 or idle == len(used))


def summaries(
    prometheus: RangeQueries, vcpus: Mapping[Key, int], summary: Callable[[list[float]], T]
) -> dict[Key, T]:
    """A summary, for each instance, of the cores that its busiest vCPU used in every step.

    Where an exporter does not count each vCPU, all of them count as equally busy."""
    results: dict[Key, T] = {}
    by, step = "max by (instance, domain)", f"[{prometheus.step_s}s]"

    def run(expression: str) -> None:
        for labels, used in prometheus.series(expression, prometheus.points):
            # Some exporters have a counter for each vCPU that they never fill.
            filled = any(used) or DOMAIN_TIME in expression
            if filled and plausible(used) and (key := _key(labels)) in vcpus:
                results[key] = summary(used)  # the means themselves are too many to keep

    for counter in (VCPU_TIME, DOMAIN_TIME):
        keys, expressions = [key for key in vcpus if key not in results], []
        size = max(1, MEANS_MAX // prometheus.points * len(vcpus) // sum(vcpus.values()))
        for batch in (keys[n : n + size] for n in range(0, len(keys), size)):
            # Quoted regular expressions, each of which matches one of these values exactly.
            hosts, domains = (
                json.dumps("|".join(map(re.escape, sorted(set(values)))), ensure_ascii=False)
                for values in zip(*batch, strict=True)
            )
            these = f"{{instance=~{hosts},domain=~{domains}}}"
            use = f"{by} (rate({counter}{these}{step}))"
            if counter == DOMAIN_TIME:
                use = f"{use} / {by} ({VCPUS}{these})"
            expressions.append(f"ceil({use} * 10000) / 10000")
        with ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
            list(pool.map(run, expressions))
    return results
