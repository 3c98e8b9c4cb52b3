"""The host's own scheduler in the simulator."""

import pytest

from amp_nova.sim.cores import Cores, share_equally, throttled


class Vcpu:
    """What the scheduler knows about a vCPU."""

    def __init__(self, order, pcpus=(0, 1), limit=1.0, yields=False):
        self.order = order
        self.pcpus = frozenset(pcpus)
        self.limit_cores = limit
        self.yields = yields
        self.pcpu = None
        self.migrations = 0
        self.cross_llc_migrations = 0


def host(*vcpus, pcpus=2, llc=None):
    """A host on which these vCPUs have just become runnable, in this order."""
    cores = Cores(llc or dict.fromkeys(range(pcpus), 0), range(pcpus))
    for vcpu in vcpus:
        cores.wake(vcpu)
    return cores


def gets(cores, vcpu):
    """Shares of pCPUs that a vCPU has after the last division."""
    return {p: pytest.approx(s) for p, s in cores.share_out()[vcpu].cores.items()}


@pytest.mark.parametrize(
    ("limits", "shares"),
    [
        ([], []),
        ([1.0], [1.0]),
        ([1.0, 1.0], [0.5, 0.5]),
        ([1.0, 0.25], [0.75, 0.25]),
        ([0.3, 0.3], [0.3, 0.3]),
        ([0.1, 1.0, 1.0, 0.5], [0.1, 0.3, 0.3, 0.3]),
    ],
)
def test_a_pcpu_is_shared_equally_up_to_the_limits(limits, shares):
    """Nobody gets more than its limit, and nothing is left while somebody wants more."""
    assert share_equally(limits) == pytest.approx(shares)


@pytest.mark.parametrize(
    ("limits", "ratios"),
    [
        ([1.0], [0.0]),
        ([0.25], [0.75]),
        ([0.25, 1.0], [0.5, 0.0]),  # half speed until its quarter is used, then throttled
        ([0.2, 0.3], [0.6, 0.5]),
        ([0.8, 0.8], [0.0, 0.0]),  # neither comes to its limit
    ],
)
def test_time_is_throttled_only_after_the_quota_is_used(limits, ratios):
    """Waiting for others is no throttling."""
    assert throttled(limits, share_equally(limits)) == pytest.approx(ratios)


def test_vcpus_spread_over_the_pcpus():
    """Each goes to the least loaded pCPU; a limit counts as the load it allows."""
    small = [Vcpu(i, limit=0.25) for i in range(2)]
    large = [Vcpu(i, limit=1.0) for i in range(2, 4)]
    cores = host(*small, *large)
    cores.share_out()

    assert sorted(v.pcpu for v in small) == [0, 1]
    assert sorted(v.pcpu for v in large) == [0, 1]


def test_a_vcpu_that_wakes_goes_back_if_there_is_room():
    """It returns to its last pCPU as long as both fit there, else to the least loaded."""
    first, second, third = Vcpu(1, limit=0.5), Vcpu(2, limit=0.5), Vcpu(3)
    cores = host(first)
    cores.sleep(first)
    cores.wake(second)
    assert (first.pcpu, second.pcpu) == (0, 0)

    cores.wake(first)
    assert (first.pcpu, first.migrations) == (0, 0)

    cores.sleep(second)
    second.limit_cores = 1.0
    cores.wake(third)
    assert third.pcpu == 1
    cores.sleep(third)
    cores.wake(second)
    assert (second.pcpu, second.migrations) == (1, 1)


def test_an_idle_pcpu_pulls_from_an_overloaded_one():
    """When a vCPU leaves, one that has to share comes over; one that does not share stays."""
    vcpus = [Vcpu(i) for i in range(3)]
    cores = host(*vcpus)
    cores.share_out()
    assert [v.pcpu for v in vcpus] == [0, 1, 0]

    cores.sleep(vcpus[1])
    cores.share_out()

    assert sorted(v.pcpu for v in (vcpus[0], vcpus[2])) == [0, 1]
    assert sum(v.migrations for v in vcpus) == 1

    cores.sleep(vcpus[0])
    cores.share_out()
    assert sum(v.migrations for v in vcpus) == 1


def test_one_that_may_move_makes_room_for_one_that_may_not():
    """A vCPU that wakes on the only pCPU it may use drives another one off it."""
    free, bound = Vcpu(1), Vcpu(2, pcpus=[0])
    cores = host(free)
    cores.share_out()
    cores.wake(bound)
    cores.share_out()

    assert (free.pcpu, bound.pcpu) == (1, 0)


def test_what_limits_leave_is_used_by_those_who_wait():
    """Three bookings of 0.6 on two pCPUs are all served; no whole vCPU would fit."""
    vcpus = [Vcpu(i, limit=0.6) for i in range(3)]
    shares = host(*vcpus).share_out()

    assert [sum(shares[v].cores.values()) for v in vcpus] == pytest.approx([0.6, 0.6, 0.6])
    assert sum(shares[v].cores.get(0, 0.0) for v in vcpus) == pytest.approx(1.0)
    assert max(len(shares[v].cores) for v in vcpus) == 2


def test_a_change_of_affinity_moves_at_once():
    """A vCPU leaves a pCPU that it may not use any more, and stays on one that it still may."""
    vcpu = Vcpu(1)
    cores = host(vcpu, llc={0: 0, 1: 1})
    cores.share_out()
    vcpu.pcpus = frozenset({0})
    cores.changed(vcpu)
    assert (vcpu.pcpu, vcpu.migrations) == (0, 0)

    vcpu.pcpus = frozenset({1})
    cores.changed(vcpu)

    assert gets(cores, vcpu) == {1: 1.0}
    assert (vcpu.migrations, vcpu.cross_llc_migrations) == (1, 1)


def test_a_change_of_limit_counts_at_once():
    """Shares follow the limit; the neighbour gets what is left."""
    vcpus = [Vcpu(1, pcpus=[0]), Vcpu(2, pcpus=[0])]
    cores = host(*vcpus)
    cores.share_out()
    assert cores.share_out() == {}

    vcpus[0].limit_cores = 0.25
    cores.changed(vcpus[0])
    shares = cores.share_out()

    assert [shares[v].cores for v in vcpus] == [{0: 0.25}, {0: 0.75}]
    assert [shares[v].throttled_ratio for v in vcpus] == [0.5, 0.0]


def test_one_that_yields_runs_in_what_others_leave():
    """Beside a vCPU limited to 0.7, one that yields gets 0.3; two of them share that."""
    firm, one, two = Vcpu(0, (0,), 0.7), Vcpu(1, (0,), yields=True), Vcpu(2, (0,), yields=True)
    cores = host(firm, one, two, pcpus=1)
    shares = cores.share_out()

    assert shares[firm].cores == {0: pytest.approx(0.7)}
    assert shares[one].cores == shares[two].cores == {0: pytest.approx(0.15)}


def test_one_that_wakes_minds_no_vcpu_that_yields():
    """A pCPU on which only a yielding vCPU runs is as good as idle."""
    yielding, half, firm = Vcpu(0, (0,), yields=True), Vcpu(1, (1,), 0.5), Vcpu(2, (0, 1), 0.9)
    cores = host(yielding, half, firm)

    assert gets(cores, firm) == {0: 0.9}
