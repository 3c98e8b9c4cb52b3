"""Nova places by capacity: what fits boots, what does not is refused by the filter."""

from collections import Counter

import pytest

from tests.e2e.conftest import metric
from tools.cloud.client import openstack
from tools.cloud.layout import FAST, RESERVE_RATIO, SLOW


@pytest.fixture
def flavor(cloud):
    """One without a claim in Placement, of which ``openstack amp flavor check`` warns."""
    yield cloud.flavor("six tenths", {"amp:pref_core": "0.6"})
    openstack("flavor", "delete", "six tenths")


def test_no_host_is_over_booked(cloud, image, flavor, speeds, figure):
    """As many servers of 0.6 reference cores boot as fit what is offered of each core; no more."""
    fit = {
        name: int((1 - RESERVE_RATIO) * coefficient / 0.6) for name, coefficient in speeds.items()
    }

    servers = [cloud.boot(image, flavor) for _ in range(sum(fit.values()))]
    refused = cloud.create(image, flavor).wait("ERROR")

    order = [server.host.name for server in servers]
    where = Counter(order)
    figure(f"servers of 0.6 reference cores placed: {', '.join(order)}; the next was refused")
    assert fit[SLOW.name] == 1 < fit[FAST.name]
    assert where == fit
    assert "No valid host" in refused.show()["fault"]["message"]
    for server in servers:
        assert metric(server.host, "amp_vcpu_booked_refcores", resource=server.id) == 0.6
