# SPDX-License-Identifier: Apache-2.0
"""The simulated host as the control loop sees it."""

import pytest

from amp_nova.model.allocation import Change, Changes, Step
from amp_nova.model.bandwidth import Bandwidth
from amp_nova_lab.host import SimHost
from tests.unit.lab.builders import guest, topology

FAST, SLOW = frozenset({0}), frozenset({1})


def host(*guests, **shape):
    return SimHost(topology(**shape), guests)


def reading(made, name="vm", index=0):
    """The reading of one vCPU."""
    (domain,) = (d for d in made.observe().domains if d.domain.name == name)
    return domain.vcpus[index]


def write(made, *steps, name="vm", index=0):
    """Apply one change as the loop would."""
    assert made.apply(Changes((Change((name, index), steps),))).failures == {}


def limit(quota_ms, period_ms=100):
    return Step(bandwidth=Bandwidth(quota_ms * 1000, period_ms * 1000))


def by_work(phases):
    return tuple(phase.by_work() for phase in phases)


def test_counters_are_those_of_a_real_host():
    """Running, waiting and throttled time are cumulative, in nanoseconds."""
    made = host(guest())
    write(made, Step(pcpus=SLOW), limit(25))
    made.advance(2.0)
    write(made, Step(bandwidth=None))
    made.advance(3.0)

    seen = reading(made)

    assert made.observe().time_ns == 3_000_000_000
    assert (seen.run_ns, seen.wait_ns, seen.throttled_ns) == (1_500_000_000,) + (1_500_000_000,) * 2
    assert (seen.pcpus, seen.allowed, seen.bandwidth) == (SLOW, FAST | SLOW, None)
    assert seen.last_pcpu == 1


def test_migrations_are_counted():
    """Every change of pCPU, and those between caches separately."""
    made = host(guest(), fast=1, slow=2, llc=[0, 0, 2])
    for pcpu in (0, 1, 2, 2):
        write(made, Step(pcpus=frozenset({pcpu})))
        made.advance(made.now_s + 1.0)

    outcome = made.outcome("vm")

    assert (outcome.migrations, outcome.cross_llc_migrations) == (2, 1)


def test_guests_come_and_go():
    """A guest added later starts then; a removed one leaves its pCPU to the others."""
    made = host(guest("a"), fast=0)
    made.advance(1.0)
    made.add(guest("b", utilization=1.0, work=1.0))
    made.advance(2.0)
    assert reading(made, "a").run_ns == 1_500_000_000

    made.remove("b")
    write(made, limit(10), name="b")
    made.advance(3.0)

    assert [d.domain.name for d in made.observe().domains] == ["a"]
    assert reading(made, "a").run_ns == 2_500_000_000


@pytest.mark.parametrize(
    ("weights", "each"),
    [({}, (0.25, 0.25, 0.5)), ({"two": 200}, (1 / 3, 1 / 3, 1 / 3))],
    ids=["as Nova starts them", "by vCPU"],
)
def test_time_is_divided_among_guests_before_their_vcpus(weights, each):
    """As the kernel divides it: by the CPU weights of guests, among vCPUs that want to run."""
    made = host(guest("two", 2), guest("one"), fast=1, slow=0)
    made.apply(Changes((), weights))
    made.advance(10.0)

    ran = [m.run_s[0] / 10.0 for name in ("two", "one") for m in made.meters(name)]
    assert ran == pytest.approx(each)
