# SPDX-License-Identifier: Apache-2.0
"""What a server is told, from a real Prometheus that scrapes agents on simulated hosts."""

import time

import pytest

from amp_nova.tenant import prometheus
from amp_nova.tenant.prometheus import ServerFigures
from tests.integration.test_dashboards import scraping
from tests.support import agents_served
from tests.support.lab import until
from tests.support.tenant import settings

PROJECT = "5ac0ffee"
SCRAPED_S = 8.0


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The service's source, once there are samples; ``agents`` are in real time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agents_served, "FASTER", 1)
        with scraping(tmp_path_factory) as server:
            time.sleep(SCRAPED_S)
            # A machine that is busy with other tests is slower than 200 ms.
            patch.setattr(prometheus, "ANSWER_S", 3.0)
            patch.setattr(prometheus, "CACHE_S", 0.1)
            made = ServerFigures(settings(server.address))
            until(lambda: made.figures("db", PROJECT), 15, "figures")
            made.server, made.agents = server, server.agents
            yield made


def exported(agent, name, resource):
    """What the agent itself says of an instance now."""
    return agent.exporter.registry.get_sample_value(
        f"amp_instance_{name}", {"domain": resource, "resource": resource, "project": PROJECT}
    )


def used_refcores(source, resource):
    """The mean since the first sample, in reference cores."""
    counted = f'amp_instance_reference_cpu_seconds_total{{resource="{resource}"}}[5m]'
    (series,) = source.server.ask("query", query=counted)["result"]
    (first_s, first), *_, (last_s, last) = series["values"]
    return (float(last) - float(first)) / (last_s - first_s)


def test_a_booking_that_is_kept(source):
    """Within 1 % of what the host says, on the core type that it says.

    The mean is compared with the same counter's growth: simulated hosts on a busy machine lag
    behind Prometheus' clock.
    """
    known, agent = source.figures("db", PROJECT), source.agents[1]
    booked, delivered = (exported(agent, f"{n}_refcores", "db") for n in ("booked", "delivered"))

    assert known["booked_refcores"] == booked
    assert known["last_delivered_refcores"] == pytest.approx(delivered, rel=0.01)
    assert known["delivered_refcores"] == pytest.approx(used_refcores(source, "db"), rel=0.25)
    assert known["coefficient"] == {"slow": 1.0, "fast": 2.0}[known["current_core_type"]]
    assert known["missed_refcores_neighbours"] == pytest.approx(0, abs=0.005)
    assert known["age_s"] < 3


def test_other_servers(source):
    """Instructions in their own unit; best effort misses nothing; who is unknown gets nothing.

    Nor does a server of another project.
    """
    best_effort = source.figures("batch", PROJECT)

    assert source.figures("counted", PROJECT)["booked_ips"] == 1e9
    used = used_refcores(source, "batch")
    assert best_effort["delivered_refcores"] == pytest.approx(used, rel=0.25)
    assert not {n for n in best_effort if n.startswith(("booked", "missed"))}
    assert source.figures("db", "another") == source.figures("nobody", PROJECT) == {}
