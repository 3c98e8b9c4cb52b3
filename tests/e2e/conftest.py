# SPDX-License-Identifier: Apache-2.0
"""The mini-cloud that ``tools/minicloud up`` brought up, and what tests measure in it."""

import urllib.request
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from amp_nova.model import cpulist
from tools.cloud.client import Cloud
from tools.cloud.layout import ADDRESS, FAST, HOSTS, Host
from tools.cloud.processes import running

_figures: list[str] = []


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of guests that count their work."""
    return Cloud().image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    """The running cloud; servers that a test makes are deleted at its end."""
    for host in HOSTS:
        assert running(f"libvirt-{host.name}"), "there is no cloud: tools/minicloud up"
    marker = request.node.get_closest_marker("cores")
    wanted = marker.args[0] if marker else 1
    if cpulist.count((FAST.folder / "online").read_text()) != wanted:
        pytest.skip(f"for hosts with {wanted} core(s): MINICLOUD_CORES={wanted}")
    made = Cloud()
    yield made
    made.clear()


def samples(host: Host) -> list[tuple[str, dict[str, str], float]]:
    """Everything that a host's agent exports now."""
    url = f"http://{ADDRESS}:{host.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        return [(s.name, dict(s.labels), s.value) for f in families for s in f.samples]


def metric(host: Host, wanted: str, **labels: str) -> float | None:
    """One exported sample, or ``None``."""
    for name, its_labels, value in samples(host):
        if name == wanted and labels.items() <= its_labels.items():
            return value
    return None


@pytest.fixture(scope="session")
def speeds() -> dict[str, float]:
    """The coefficient of each host's core, as its agent exports it."""
    found = {h.name: metric(h, "amp_core_type_coefficient_ratio", core_type=h.name) for h in HOSTS}
    assert None not in found.values()
    return {name: value for name, value in found.items() if value is not None}


@pytest.fixture(scope="session")
def figure() -> Callable[[str], None]:
    """Say what was measured; all of it is printed at the end of the run."""
    return _figures.append


# In quotes, because pytest 8.0 does not export it.
def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Print the figures, passed or failed."""
    if _figures:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(_figures))
