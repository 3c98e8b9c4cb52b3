# SPDX-License-Identifier: Apache-2.0
"""The simulated host's own scheduler."""

import pytest

from amp_nova_lab.cores import Cores, share, throttled
from amp_nova_lab.guest import Moves


class Vcpu:
    """What the scheduler knows about a vCPU."""

    def __init__(self, order, pcpus=(0, 1), limit=1.0, weight=100.0):
        self.order = order
        self.pcpus = frozenset(pcpus)
        self.limit_cores = limit
        self.weight = weight
        self.pcpu = None
        self.moves = Moves()


def host(*vcpus, pcpus=2, llc=None):
    """A host on which these vCPUs became runnable, in this order."""
    cores = Cores(llc or dict.fromkeys(range(pcpus), 0), range(pcpus))
    for vcpu in vcpus:
        cores.wake(vcpu)
    return cores


@pytest.mark.parametrize(
    ("limits", "weights", "ratios"),
    [
        ([1.0], [100], [0.0]),
        ([0.25], [100], [0.75]),
        ([0.25, 1.0], [100, 100], [0.5, 0.0]),  # half speed until the quota is used
        ([0.8, 0.8], [100, 100], [0.0, 0.0]),  # neither reaches its limit
        ([0.75, 1.0], [300, 100], [0.0, 0.0]),  # it has used up its quota as the period ends
        ([0.6, 1.0], [300, 100], [0.2, 0.0]),  # at three quarters of the speed: after 0.8
        ([0.5, 0.2], [300, 100], [1 / 3, 0.3]),  # after 2/3; then 1/30 more alone
    ],
)
def test_time_is_throttled_only_after_the_quota_is_used(limits, weights, ratios):
    """Waiting for other vCPUs is not throttling; a greater weight uses the quota sooner."""
    assert throttled(limits, weights, share(limits, weights)) == pytest.approx(ratios)


def test_a_vcpu_that_wakes_returns_if_its_load_fits():
    """It returns to its last pCPU if both fit there, else goes to the least loaded."""
    first, second, third = Vcpu(1, limit=0.5), Vcpu(2, limit=0.5), Vcpu(3)
    cores = host(first)
    cores.sleep(first)
    cores.wake(second)
    assert (first.pcpu, second.pcpu) == (0, 0)

    cores.wake(first)
    assert (first.pcpu, first.moves.total) == (0, 0)

    cores.sleep(second)
    second.limit_cores = 1.0
    cores.wake(third)
    assert third.pcpu == 1
    cores.sleep(third)
    cores.wake(second)
    assert (second.pcpu, second.moves.total) == (1, 1)


def test_vcpus_with_one_affinity_share_what_the_load_balancer_evens_out():
    """Three on two pCPUs, one of which has two: the kernel gives each two thirds of a pCPU."""
    vcpus = [Vcpu(i) for i in range(3)]
    shares = host(*vcpus).reschedule()
    even = host(*(Vcpu(i) for i in range(4))).reschedule()

    assert [sum(shares[v].cores.values()) for v in vcpus] == pytest.approx([2 / 3] * 3)
    assert sum(shares[v].cores[0] for v in vcpus) == pytest.approx(1.0)
    assert [list(s.cores.values()) for s in even.values()] == [[0.5]] * 4  # nothing to even out
