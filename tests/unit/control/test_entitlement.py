"""What every vCPU is promised, and what is said when that cannot be kept."""

from dataclasses import replace

import pytest

from amp_nova.control.entitlement import Booked, Terms, promises
from amp_nova.flavor.extra_specs import VcpuBooking, parse
from amp_nova.model.bandwidth import Bandwidth
from tests.hosts import limit, reading, topology


def domain(resource="vm", readings=None, hands_off=None, vcpus=None, **specs):
    """A domain with extra specs given without their prefix; ``__`` stands for a dot."""
    readings = readings or [reading()]
    booking = parse(
        {f"amp:{k.replace('__', '.')}": v for k, v in specs.items()}, vcpus or len(readings)
    )
    return Booked(resource, booking, readings, hands_off)


def promised(*domains, host=None, **terms):
    """What these domains are promised on the usual host: two slow pCPUs (0, 1), one fast (2)."""
    return promises(domains, host or topology(), Terms(**terms))


def only(domain_, **rest):
    """The promise to the only vCPU of a domain."""
    (promise,) = promised(domain_, **rest).values()
    return promise


class TestBooked:
    def test_on_a_slow_core(self):
        """Half a reference core is half of a slow pCPU, and the grant says why."""
        promise = only(domain(pref_core="0.5"))

        assert promise.core_type == "slow"
        assert promise.grant.pcpus == {0, 1}
        assert promise.grant.limits
        assert promise.grant.bandwidth.cores == 0.5
        assert promise.grant.why == "0.5 refcores / 1 on slow"
        assert promise.note is None
        assert promise.booking == VcpuBooking(0, "pref_core", refcores=0.5)

    def test_on_a_fast_core(self):
        """1.5 reference cores are three quarters of a core that is twice as fast."""
        promise = only(domain(pref_core="1.5"))

        assert promise.grant.pcpus == {2}
        assert promise.grant.bandwidth.cores == 0.75

    def test_the_period_is_the_same_on_every_type(self):
        """So a move between types is one write of the quota."""
        slow = only(domain(pref_core="0.1", core_type="slow")).grant.bandwidth
        fast = only(domain(pref_core="0.1", core_type="fast")).grant.bandwidth

        assert slow == Bandwidth(10_000, 100_000)
        assert fast == Bandwidth(5_000, 100_000)

    def test_a_whole_core_has_no_limit(self):
        """One vCPU cannot use more than one pCPU: but whatever limit there was is taken away."""
        promise = only(domain(pref_core="2"))

        assert promise.grant.limits
        assert promise.grant.bandwidth is None

    def test_soft_has_all_that_nobody_booked(self):
        """At least what is booked: room is kept, and where it is alone nothing is taken."""
        promise = only(domain(pref_core="0.5", limit="soft"))

        assert (promise.core_type, promise.pcpu is not None) == ("slow", True)
        assert promise.grant.limits
        assert promise.grant.bandwidth is None
        assert promise.grant.why.endswith("soft")

    def test_one_pcpu(self):
        """Where the operator wants that, the vCPU is tied to the pCPU it was packed onto."""
        promise = only(domain(pref_core="1.5"), one_pcpu=True)

        assert promise.grant.pcpus == {promise.pcpu} == {2}

    def test_one_pcpu_is_kept(self):
        """A newcomer that would be packed first does not shuffle those that are there."""
        old = [domain(f"old{i}", [reading(pcpus=[1 - i])], pref_core="0.2") for i in range(2)]
        new = domain("new", [reading(allowed=[0, 1], pcpus=[0, 1])], pref_core="0.7")

        found = promised(new, *old, one_pcpu=True)

        assert [found[f"old{i}", 0].grant.pcpus for i in range(2)] == [{1}, {0}]

    def test_stays_within_what_nova_allows(self):
        """The grant never leaves the pCPUs of the instance's own pinning."""
        promise = only(domain(readings=[reading(pcpus=[1], allowed=[1])], pref_core="0.5"))

        assert promise.grant.pcpus == {1}

    def test_vcpus_of_one_domain_may_need_different_types(self):
        """An AMP VM: a slow and a fast vCPU in one instance, the third unlimited."""
        found = promised(
            domain(readings=[reading(i) for i in range(3)], pref_core__0="0.5", pref_core__1="2")
        )

        assert [found["vm", i].core_type for i in range(3)] == ["slow", "fast", None]
        rest = found["vm", 2].grant
        assert (sorted(rest.pcpus), rest.bandwidth) == ([0, 1], None)

    def test_three_core_types(self):
        """Everybody gets the slowest type that suffices."""
        host = topology({"little": (1, 1.0), "middle": (1, 1.6), "big": (1, 2.4)})
        asks = {"0.9": "little", "1.5": "middle", "2": "big"}
        domains = [domain(ask, [reading(allowed=[0, 1, 2])], pref_core=ask) for ask in asks]

        found = promised(*domains, host=host)

        assert {ask: found[ask, 0].core_type for ask in asks} == asks
        assert found["1.5", 0].grant.bandwidth.cores == pytest.approx(1.5 / 1.6, rel=0.001)

    def test_tiny_bookings_say_what_they_get(self):
        """Below the kernel's least limit the vCPU gets more than it booked, and that is said."""
        promise = only(domain(pref_core="0.0001"))

        assert promise.grant.bandwidth == Bandwidth(1_000, 1_000_000)
        assert promise.note == (
            "may use 0.001 refcores: the kernel takes no limit as low as its booking"
        )
        assert only(domain(pref_core="0.002")).note is None

    def test_the_tiniest_booking_is_survived(self):
        """A number that hardly is one crashes nothing."""
        assert only(domain(pref_core="0." + "0" * 309 + "1")).grant.bandwidth.quota_us == 1_000


class TestOverBooked:
    def test_no_room(self):
        """The one that is left out shares a core type that is fast enough, and is told."""
        domains = [domain(str(i), pref_core="0.9") for i in range(5)]

        found = promised(*domains).values()

        (left,) = (p for p in found if p.note)
        assert left.note == "over-booked: 0.9 reference cores are not free on any pCPU it may use"
        assert left.pcpu is None
        assert left.grant.pcpus == {2}
        assert left.grant.bandwidth.cores == 0.45

    def test_no_room_is_shared_by_many(self):
        """The one that is left out goes where each of the others loses least by it."""
        host = topology({"slow": (8, 1.0), "fast": (1, 2.0)})
        readings = {"readings": [reading(pcpus=range(9), allowed=range(9))]}
        domains = [domain(str(i), pref_core="1", **readings) for i in range(8)]

        found = promised(*domains, domain("x", pref_core="2", **readings), host=host)
        assert all(p.note is None for p in found.values())

        found = promised(
            *domains,
            domain("x", pref_core="2", **readings),
            domain("y", pref_core="1", **readings),
            host=host,
        )
        (left,) = (p for p in found.values() if p.note)
        assert left.core_type == "slow"

    def test_no_room_stays_where_it_is(self):
        """One that is on a type that is fast enough is not moved about in vain."""
        host = topology({"slow": (3, 1.0), "fast": (1, 2.0)})
        on_fast = reading(pcpus=[3], allowed=range(4))
        domains = [domain(str(i), [on_fast], pref_core="0.9") for i in range(6)]

        found = promised(*domains, host=host).values()

        assert [p.grant.pcpus for p in found if p.note] == [{3}]

    def test_too_large(self):
        """A vCPU larger than any core gets the fastest whole, without a limit, and is told."""
        promise = only(domain(pref_core="3"))

        assert promise.note == (
            "over-booked: 3 reference cores per vCPU are more than any core type it may use can "
            "give"
        )
        assert promise.grant.pcpus == {2}
        assert promise.grant.bandwidth is None

    def test_too_large_for_its_core_type(self):
        """It stays on the type that its flavor insists on."""
        promise = only(domain(pref_core="1.5", core_type="slow"))

        assert "more than core type slow can give" in promise.note
        assert promise.grant.pcpus == {0, 1}
        assert promise.grant.bandwidth is None

    def test_no_such_core_type(self):
        """The core type is on other hosts only: nothing is granted, the type is named."""
        promise = only(domain(pref_core="0.5", core_type="huge"))

        assert promise.grant is None
        assert promise.note == "not enforced: this host has no core type 'huge'"

    def test_nothing_online(self):
        """All its pCPUs are offline."""
        promise = only(
            domain(readings=[reading(pcpus=[2], allowed=[2])], pref_core="0.5"),
            host=topology(offline=[2]),
        )

        assert promise.note == "not enforced: none of the pCPUs it may use is online"

    def test_unknown_coefficient(self):
        """A speed that is not known is not guessed: no limit, and the remedy is named."""
        promise = only(
            domain(pref_core="0.5"), host=topology({"slow": (2, None), "fast": (1, None)})
        )

        assert promise.grant is None
        assert promise.note == (
            "not enforced: the coefficient of its core types is not known; run amp-nova calibrate"
        )

    def test_partly_unknown_coefficients(self):
        """It is kept where its booking can be kept."""
        promise = only(domain(pref_core="1"), host=topology({"slow": (2, 1.0), "odd": (1, None)}))

        assert promise.grant.pcpus == {0, 1}

    def test_a_vcpu_that_nobody_counted(self):
        """A vCPU beyond the definition's count (hot plug, seen half-way) books nothing."""
        found = promised(domain(readings=[reading(0), reading(4)], vcpus=2, pref_core="0.5"))

        assert found["vm", 0].grant is not None
        assert found["vm", 4].booking.kind == "best_effort"


class TestRest:
    def test_best_effort_is_left_alone(self):
        """Neither quota nor affinity, and no note."""
        promise = only(domain())

        assert (promise.grant, promise.core_type, promise.note) == (None, None, None)

    def test_ips_that_nothing_counts_and_nobody_knows_are_not_limited(self):
        """What cannot be kept is said, not guessed."""
        promise = only(domain(ips="1G"))

        assert promise.grant is None
        assert "unverifiable" in promise.note
        assert "run amp-nova calibrate" in promise.note

    def test_a_core_type_alone_keeps_the_quota_of_others(self):
        """Its affinity is ours, its bandwidth is not; a policy may choose among the pCPUs."""
        promise = only(domain(core_type="slow"))

        assert promise.grant.pcpus == {0, 1}
        assert not promise.grant.limits
        assert promise.grant.met_by(frozenset({1}))
        assert not promise.grant.met_by(frozenset({1, 2}))
        assert not promise.grant.met_by(frozenset())

    def test_a_core_type_that_cannot_be_had(self):
        """It says so."""
        assert only(domain(core_type="huge")).note == (
            "not enforced: no pCPU of core type 'huge' may be used"
        )

    def test_weight(self):
        """It is handed on to the policies."""
        assert only(domain(weight="4")).weight == 4.0


class TestHandsOff:
    def test_nothing_is_granted_and_the_reason_is_told(self):
        """A paused instance keeps what it has."""
        promise = only(
            domain(readings=[reading(pcpus=[2])], pref_core="0.5", hands_off="paused by hand")
        )

        assert promise.grant is None
        assert promise.hands_off
        assert promise.core_type == "fast"
        assert promise.note == "not enforced: paused by hand"

    def test_best_effort_needs_no_note(self):
        """There is nothing that is not enforced; policies keep off too."""
        promise = only(domain(hands_off="paused"))

        assert (promise.note, promise.hands_off) == (None, True)

    def test_it_keeps_its_room(self):
        """Others are packed around it, where it really is."""
        held = domain("held", [reading(pcpus=[2])], pref_core="1", hands_off="paused")
        other = domain("other", pref_core="1.5")

        found = promised(held, other)

        assert found["held", 0].pcpu == 2
        assert found["other", 0].note.startswith("over-booked")

    def test_where_its_booking_cannot_be_had_it_takes_room_as_ever(self):
        """Moved by hand to a core too slow for it, it still is entitled to what it booked."""
        held = domain("held", [reading(pcpus=[0])], pref_core="2", hands_off="paused")

        assert only(held).pcpu == 2

    def test_spread_over_types(self):
        """Before it was ever placed: no core type to show, room all the same."""
        promise = only(domain(pref_core="2", hands_off="paused"))

        assert (promise.core_type, promise.pcpu) == (None, 2)


def test_bookings_are_packed_as_the_scheduler_packs():
    """The reserve counts here too."""
    domains = [domain(str(i), [reading(allowed=[0], pcpus=[0])], pref_core="0.5") for i in range(2)]

    assert all(p.note is None for p in promised(*domains).values())
    assert sum(p.note is not None for p in promised(*domains, reserve_ratio=0.1).values()) == 1


def test_what_holds_does_not_change_the_promise():
    """A limit that somebody else set is no reason to promise anything else."""
    plain = reading(pcpus=[0, 1])
    meddled = replace(plain, bandwidth=limit(0.9))

    assert only(domain(readings=[plain], pref_core="0.5")) == only(
        domain(readings=[meddled], pref_core="0.5")
    )
