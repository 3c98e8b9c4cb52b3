# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus that has scraped agents, for the services that read it."""

import time

import pytest

from tests.integration.test_dashboards import scraping
from tests.support.lab import until

PERIOD_S = 10


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory):
    """It has scraped both agents for longer than ``PERIOD_S``, and has minutes that were missed."""
    with scraping(tmp_path_factory) as found:
        missed = f'rate(amp_instance_delivered_ratio_bucket{{le="0.95"}}[{PERIOD_S}s]) > 0'
        until(lambda: found.series(missed), 60, "a missed minute")
        time.sleep(PERIOD_S)
        yield found
