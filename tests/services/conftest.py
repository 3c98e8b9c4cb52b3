"""A real Prometheus that has scraped agents, for the services that read it."""

import time

import pytest

from tests.agents_served import two_agents
from tests.integration.test_dashboards import Server
from tests.lab import until
from tests.monitoring import program

PERIOD_S = 10


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory):
    """It has scraped both agents for longer than ``PERIOD_S``, and has minutes that were missed."""
    program("prometheus")
    with two_agents() as agents:
        found = Server(tmp_path_factory.mktemp("prometheus"), [a.port for a in agents])
        try:
            found.wait()
            missed = f'rate(amp_instance_delivered_ratio_bucket{{le="0.95"}}[{PERIOD_S}s]) > 0'
            until(lambda: found.series(missed), 60, "a missed minute")
            time.sleep(PERIOD_S)
            yield found
        finally:
            found.stop()
