"""Measured values, from a Prometheus that scrapes the agents."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from keystoneauth1.exceptions import ClientException

LOG = logging.getLogger(__name__)
TIMEOUT_S = 30


class Prometheus:
    """Answers instant queries. A failure is logged once, and all later answers are empty."""

    def __init__(self, session: Any, url: str, *, authenticated: bool) -> None:
        self._session = session
        self._url = url
        self._authenticated = authenticated
        self._failed = False

    def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """The labels and the value of every series of an instant vector."""
        if self._failed:
            return []
        try:
            answer = self._session.get(
                f"{self._url}/api/v1/query",
                params={"query": expression},
                authenticated=self._authenticated,
                timeout=TIMEOUT_S,
                raise_exc=False,
            )
            found = answer.json()["data"]["result"]
            return [(series["metric"], float(series["value"][1])) for series in found]
        except (ClientException, ValueError, LookupError, TypeError) as exc:
            self._failed = True
            LOG.warning("no measured values: Prometheus at %s failed: %s", self._url, exc)
            return []


def by_label(prometheus: Prometheus | None, label: str, expression: str) -> dict[str, float]:
    """Values by the value of one label."""
    found = prometheus.query(expression) if prometheus else []
    return {labels[label]: value for labels, value in found if label in labels}


def by_host(
    prometheus: Prometheus | None, nodes: Iterable[str], expression: str, label: str = ""
) -> dict[tuple[str, str], float]:
    """Values by host and by the value of ``label``."""
    found: dict[tuple[str, str], float] = {}
    known = {name: node for node in nodes for name in (node.split(".")[0], node)}
    for labels, value in prometheus.query(expression) if prometheus else []:
        # The label that the scrape job sets, else the address that is scraped.
        name = labels.get("host") or labels.get("instance", "").rpartition(":")[0]
        if node := known.get(name) or known.get(name.split(".")[0]):
            found[node, labels.get(label, "")] = value
    return found
