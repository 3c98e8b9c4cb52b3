"""From what is in force to what vCPUs are entitled to."""

from amp_nova.control.changes import change, changes
from amp_nova.control.entitlement import Entitlement, Quota
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.allocation import (
    Allocation,
    Failure,
    Outcome,
    Step,
    in_force,
)
from tests.hosts import FakeHost, allocations, limit

KEY = ("vm", 0)


def now_at(pcpus, bandwidth=None):
    """What is in force for one vCPU."""
    return Allocation(frozenset(pcpus), bandwidth)


def entitlement(pcpus=(0, 1), **rest):
    kept = None if pcpus is None else frozenset(pcpus)
    return Entitlement(KEY, VcpuBooking(0), frozenset({0, 1, 2}), kept, **rest)


class TestChange:
    def test_nothing_to_do(self):
        """What holds is not written again: the write would refill the bandwidth."""
        now = now_at([0, 1], bandwidth=limit(0.5))

        assert change(now, entitlement(quota=Quota(limit(0.5)))) is None

    def test_a_limit_that_is_not_ours(self):
        """A grant that does not limit leaves whatever limit there is."""
        now = now_at([0, 1], bandwidth=limit(0.5))

        assert change(now, entitlement()) is None
        assert change(now, entitlement([2])).steps == (Step(pcpus=frozenset({2})),)

    def test_the_limit_is_lowered_before_a_move(self):
        """From a slow to a fast core: in between it has too little, never too much."""
        now = now_at([0, 1], bandwidth=limit(0.8))

        steps = change(now, entitlement([2], quota=Quota(limit(0.4)))).steps

        assert steps == (Step(bandwidth=limit(0.4)), Step(pcpus=frozenset({2})))

    def test_the_limit_is_raised_after_a_move(self):
        """From a fast to a slow core."""
        now = now_at([2], bandwidth=limit(0.4))

        steps = change(now, entitlement([0], quota=Quota(limit(0.8)))).steps

        assert steps == (Step(pcpus=frozenset({0})), Step(bandwidth=limit(0.8)))

    def test_no_limit_is_the_highest(self):
        """To limit one that had no limit comes first; to free one comes last."""
        free, limited = now_at([0]), now_at([0], bandwidth=limit(0.5))

        first = change(free, entitlement([2], quota=Quota(limit(0.5)))).steps
        last = change(limited, entitlement([2], quota=Quota(None))).steps

        assert first[0] == Step(bandwidth=limit(0.5))
        assert last[-1] == Step(bandwidth=None)

    def test_another_period_is_another_limit(self):
        """The same share in longer runs is a change, of one write."""
        now = now_at([0, 1], bandwidth=limit(0.5, 20_000))

        steps = change(now, entitlement(quota=Quota(limit(0.5, 100_000)))).steps

        assert steps == (Step(bandwidth=limit(0.5, 100_000)),)

    def test_wherever_it_is(self):
        """An entitlement without pCPUs leaves the affinity alone."""
        assert change(now_at([1]), entitlement(None)) is None


def test_the_cpu_weight_is_set_once_for_an_instance():
    """Where it is set already, or not ours to set, there is nothing to do."""
    host = FakeHost()
    host.add("vm", vcpus=2)
    wanted = {("vm", i): entitlement(None, cpu_weight=10) for i in range(2)}

    now = allocations(host.observe())

    assert changes(now, {"vm": 100}, wanted).cpu_weights == {"vm": 10}
    for present in (10, None):
        assert not changes(now, {"vm": present}, wanted)


def test_what_is_in_force_after_changes():
    """What failed is as it was before."""
    host = FakeHost()
    host.add("vm", vcpus=2)
    before = allocations(host.observe())
    wanted = {
        ("vm", i): Entitlement(
            ("vm", i), VcpuBooking(i), frozenset(), frozenset({2}), Quota(limit(0.5))
        )
        for i in range(2)
    }
    made = changes(before, {"vm": None}, wanted)

    now = in_force(before, made, Outcome({("vm", 1): Failure("refused", "no")}))

    assert (now["vm", 0].pcpus, now["vm", 0].bandwidth) == ({2}, limit(0.5))
    assert now["vm", 1] == before["vm", 1]
