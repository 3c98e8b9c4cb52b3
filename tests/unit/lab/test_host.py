# SPDX-License-Identifier: Apache-2.0
"""The simulated host as the control loop sees it."""

from dataclasses import replace

import pytest

from amp_nova.model.allocation import Change, Changes, Step
from amp_nova.model.bandwidth import Bandwidth
from amp_nova_lab.host import SimHost
from amp_nova_lab.scenarios.workload import Phase
from tests.unit.lab.builders import guest, place, topology

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


def test_a_guest_starts_where_it_is_told():
    """A best-effort guest may go anywhere from there; a booked one is pinned there."""
    made = host(guest("free", start_on="slow"), guest("booked", start_on="slow", pref_core="0.5"))

    assert (reading(made, "free").last_pcpu, reading(made, "free").pcpus) == (1, FAST | SLOW)
    assert (reading(made, "booked").last_pcpu, reading(made, "booked").pcpus) == (1, SLOW)

    sleeper = host(guest(start_on="fast", utilization=0.0))
    assert reading(sleeper).last_pcpu == 0


@pytest.mark.parametrize("vcpus", [1, 2])
def test_phases_follow_the_work(vcpus):
    """Each ends after as much work as in a second alone on a slow core, so half a second here."""
    phases = (Phase((1.0, 2.0), 1.0, 1.0), Phase((1.0, 4.0), 0.5, 1.0), Phase((1.0, 9.0), 0.0, 1.0))
    made = host(guest(vcpus=vcpus, phases=by_work(phases), start_on="fast"), fast=vcpus)

    # 0.5 s at 2.0, then 0.5 s of work at 4.0 for half of the time, then a second asleep.
    made.advance(120.0)
    found = [m.progress_ref_s for m in made.meters("vm")]

    assert found == pytest.approx([1.5 * 120.0 / 1.75] * vcpus, rel=0.02)
    assert made.outcome("vm").alone == pytest.approx(made.outcome("vm").speed, rel=0.01)


def test_a_phase_of_work_lasts_as_long_as_the_work():
    """Half of a core takes twice the time; phases by the clock end when they end."""
    phases = (Phase((1.0, 2.0), 1.0, 4.0), Phase((1.0, 1.0), 1.0, 4.0))
    both = [guest(n, phases=by_work(phases)) for n in "ab"]
    both += [guest(n, phases=phases) for n in "cd"]
    made = host(*both, fast=2)
    for pcpu, names in enumerate(("ab", "cd")):
        for name in names:
            place(made, pcpu, name)

    made.advance(12.0)

    # By work: 4 s of work at half of 2.0, 4 s at half of 1.0. By the clock: 4 s of each in turn.
    assert made.meters("a")[0].progress_ref_s == pytest.approx(8.0)
    assert made.meters("c")[0].progress_ref_s == pytest.approx(4.0 + 2.0 + 4.0)


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


def test_the_turns_of_a_removed_guest_are_dropped():
    """Even if another guest takes its name."""
    made = host(guest(utilization=0.5))
    made.advance(1.0)
    made.remove("vm")
    made.add(guest(utilization=1.0))
    made.advance(2.0)

    assert reading(made).run_ns == 1_000_000_000


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


def test_a_vcpu_whose_siblings_sleep_has_the_whole_weight_of_its_guest():
    """Each of two busy guests gets half, whatever their number of vCPUs."""
    workload = guest(phases=(Phase((1.0, 2.0), 0.0),)).workload
    busy = guest("half", 2)
    asleep = replace(busy.workload, vcpus=(busy.workload, workload))
    made = host(replace(busy, workload=asleep), guest("one"), fast=1, slow=0)
    made.advance(10.0)

    assert [m.run_s[0] for m in made.meters("half")] == pytest.approx([5.0, 0.0])
