# SPDX-License-Identifier: Apache-2.0
"""Instant queries to the Prometheus that scrapes the agents."""

import json
from urllib.parse import urlencode

from tempest import config
from tempest.lib import exceptions
from tempest.lib.common import http

CONF = config.CONF
TIMEOUT_S = 30


def query(expression: str) -> list[tuple[dict[str, str], float]]:
    """The labels and the value of every series of an instant vector."""
    url = f"{CONF.amp_nova.prometheus_url.rstrip('/')}/api/v1/query"
    client = http.ClosingHttp(
        disable_ssl_certificate_validation=CONF.identity.disable_ssl_certificate_validation,
        ca_certs=CONF.identity.ca_certificates_file,
        timeout=TIMEOUT_S,
    )
    response, body = client.request(f"{url}?{urlencode({'query': expression})}", "GET")
    if response.status != 200:
        raise exceptions.UnexpectedResponseCode(
            f"Prometheus at {url} answered {response.status} to {expression}: {body[:200]!r}"
        )
    vector = json.loads(body)["data"]["result"]
    return [(series["metric"], float(series["value"][1])) for series in vector]
