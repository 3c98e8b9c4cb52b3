# SPDX-License-Identifier: Apache-2.0
"""CPU weights: how instances divide the time of a pCPU for which they compete.

Weights are those of cgroup version 2 (``cpu.weight``, 1 to 10000; the kernel's ``cgroup-v2.rst``).
In version 1, ``cpu.shares`` of 1024 are the weight 100. The weight of an instance is proportional
to its vCPUs, because the kernel divides a group's weight among the pCPUs on which it is runnable.

A limit keeps a booking from taking more than it booked; its weight gives it precedence up to there.
Best effort keeps a hundredth of that, so it never starves, and neither do QEMU's own threads, which
share the weight of their instance.
"""

DEFAULT = 100
"""What a new cgroup has."""
BOOKED = 500
"""For each vCPU of an instance with a booking. With five times the default it has precedence over
an instance that starts while there is no agent."""
BEST_EFFORT = 5
"""For each vCPU of an instance without a booking."""
FLOOR_CORES = BEST_EFFORT / BOOKED
"""What a best-effort vCPU gets of a pCPU that a booked vCPU wants all the time."""
MOST = 10_000


def booked(vcpus: int) -> int:
    """The weight of an instance with a booking that found capacity."""
    return min(MOST, BOOKED * vcpus)


def best_effort(vcpus: int) -> int:
    """The weight of an instance without a booking, or whose booking found no capacity."""
    return min(MOST, BEST_EFFORT * vcpus)


def placed(vcpus: int) -> int:
    """The weight of an instance that a policy places and that competes with no booking.

    The kernel divides a crowded pCPU among instances, and policies count in vCPUs.
    """
    return min(MOST, DEFAULT * vcpus)


def ours(vcpus: int) -> tuple[int, ...]:
    """The weights that amp-nova gives to an instance with this many vCPUs."""
    weights = booked(vcpus), best_effort(vcpus), placed(vcpus)
    return tuple([weight for weight in weights if weight != DEFAULT])
