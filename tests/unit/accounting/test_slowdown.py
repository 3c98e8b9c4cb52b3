# SPDX-License-Identifier: Apache-2.0
"""Slowdown of instances relative to running alone on the same host."""

import pytest

from amp_nova.accounting.slowdown import Recent, slowdown
from amp_nova.model.topology import CoreType

approx = pytest.approx
TYPES = CoreType("slow", 1.0), CoreType("fast", 2.5)


def vcpu(slow_s, fast_s, speedup=2.1, demand_s=None):
    return speedup, Recent((slow_s, fast_s), demand_s or slow_s + fast_s)


IDLE = vcpu(0.01, 0.0)


@pytest.mark.parametrize(
    ("vcpus", "pcpus", "expected"),
    [
        # Half of the time on each type: 2.1 alone over (1 + 2.1) / 2.
        ([vcpu(30.0, 30.0)], (10, 2), approx(2.1 / 1.55)),
        # saez2015: alone they would run at 1 + 1.1 x 2 / 9, here on slow cores at 1.
        ([vcpu(60.0, 0.0)] * 9, (10, 2), approx(1.0 + 1.1 * 2 / 9)),
        ([vcpu(60.0, 0.0)] * 9, (10, 0), approx(1.0)),
        # In a serial section it would have a fast core for its one busy vCPU.
        ([vcpu(60.0, 0.0), *[IDLE] * 8], (10, 1), approx(2.1, rel=0.01)),
        # Demand for 60 s and 20 s of running on the fast core.
        ([vcpu(0.0, 20.0, demand_s=60.0)], (1, 1), approx(3.0)),
        ([vcpu(60.0, 0.0), vcpu(1.0, 0.0, speedup=None)], (1, 1), None),
    ],
    ids=["one vCPU", "turns", "no fast core", "idle ones take no turns", "waits", "no speedup"],
)
def test_the_slowdown_is_relative_to_running_alone(vcpus, pcpus, expected):
    """On the host's fast cores, in turns if it has more vCPUs; unknown without a speedup."""
    assert slowdown(vcpus, TYPES, pcpus) == expected
