"""What is in force for the vCPUs of a domain."""

import pytest

from amp_nova.model.allocation import of_domain, unchanged
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Counts, Domain, DomainReading, VcpuReading

ANY, ONE = frozenset({0, 1}), frozenset({0})
COUNTED = Counts(1_000)


def reading(index=1, run_ns=0, limit=None, pcpus=ANY, allowed=ANY, counts=COUNTED, uncounted=None):
    return VcpuReading(index, run_ns, 0, 0, limit, pcpus, allowed, None, counts, uncounted)


def domain(*vcpus, bursts_us=None):
    return DomainReading(Domain("uuid", "vm", 2), vcpus, bursts_us=bursts_us or {})


BEFORE = domain(reading(0), reading(limit=Bandwidth(1_000, 10_000)))


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (BEFORE, True),
        (domain(reading(0, 10), reading(1, 99, Bandwidth(1_000, 10_000), counts=Counts(7))), True),
        (domain(reading(0), reading(limit=Bandwidth(2_000, 10_000))), False),
        (domain(reading(0), reading()), False),
        (domain(reading(0, pcpus=ONE), BEFORE.vcpus[1]), False),
        (domain(reading(0, allowed=ONE), BEFORE.vcpus[1]), False),
        (domain(reading(0, counts=None), BEFORE.vcpus[1]), False),
        (domain(reading(0, counts=None, uncounted="no PMU"), BEFORE.vcpus[1]), False),
        (domain(reading(0)), False),
        (domain(*BEFORE.vcpus, bursts_us={1: 500}), False),
    ],
)
def test_what_is_in_force_changes_only_with_limits_affinities_and_counters(now, same):
    """Not with time: the quick comparison says the same as the whole one."""
    assert unchanged(BEFORE, now) is same
    assert (of_domain(BEFORE) == of_domain(now)) is same
