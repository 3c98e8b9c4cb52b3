"""What every vCPU is promised, and what is said when that cannot be kept."""

import pytest

from amp_nova.control import limit
from amp_nova.control.context import Context, Instance, Terms, VcpuFacts
from amp_nova.control.entitlement import entitle
from amp_nova.control.homes import pack
from amp_nova.flavor.extra_specs import VcpuBooking, parse
from amp_nova.model.bandwidth import Bandwidth
from tests.hosts import reading, topology


def domain(resource="vm", readings=None, excluded=None, vcpus=None, **specs):
    """An instance with extra specs given without their prefix; ``__`` stands for a dot."""
    readings = readings or [reading()]
    booking = parse(
        {f"amp:{k.replace('__', '.')}": v for k, v in specs.items()}, vcpus or len(readings)
    )
    facts = (VcpuFacts(r.index, r.pcpus, r.allowed) for r in readings)
    return Instance(resource, booking, tuple(facts), excluded)


def entitled(*instances, host=None, **terms):
    """All entitlements on the usual host: two slow pCPUs (0, 1), one fast (2)."""
    host, terms = host or topology(), Terms(**terms)
    context = Context(host, terms, pack(instances, host, terms, {}))
    return limit.steady(entitle(instances, context), host, terms, speeds_vary=False).entitlements


def only(instance, **rest):
    """The entitlement of the only vCPU of an instance."""
    (entitlement,) = entitled(instance, **rest).values()
    return entitlement


class TestBooked:
    def test_on_a_slow_core(self):
        """Half a reference core is half of a slow pCPU, and the grant says why."""
        entitlement = only(domain(pref_core="0.5"))

        assert entitlement.core_type == "slow"
        assert entitlement.pcpus == {0, 1}
        assert entitlement.governed_by == "booking"
        assert entitlement.quota.bandwidth.cores == 0.5
        assert entitlement.reason == "0.5 refcores / 1 on slow"
        assert entitlement.note is None
        assert entitlement.booking == VcpuBooking(0, "pref_core", refcores=0.5)

    def test_on_a_fast_core(self):
        """1.5 reference cores are three quarters of a core that is twice as fast."""
        entitlement = only(domain(pref_core="1.5"))

        assert entitlement.pcpus == {2}
        assert entitlement.quota.bandwidth.cores == 0.75

    def test_the_period_is_the_same_on_every_type(self):
        """So a move between types is one write of the quota."""
        slow = only(domain(pref_core="0.1", core_type="slow")).quota.bandwidth
        fast = only(domain(pref_core="0.1", core_type="fast")).quota.bandwidth

        assert slow == Bandwidth(10_000, 100_000)
        assert fast == Bandwidth(5_000, 100_000)

    def test_a_whole_core_has_no_limit(self):
        """One vCPU cannot use more than one pCPU: but whatever limit there was is taken away."""
        entitlement = only(domain(pref_core="2"))

        assert entitlement.governed_by == "booking"
        assert entitlement.quota.bandwidth is None

    def test_soft_has_all_that_nobody_booked(self):
        """At least what is booked: room is kept, and where it is alone nothing is taken."""
        entitlement = only(domain(pref_core="0.5", limit="soft"))

        assert (entitlement.core_type, entitlement.home.pcpu is not None) == ("slow", True)
        assert entitlement.governed_by == "booking"
        assert entitlement.quota.bandwidth is None
        assert entitlement.reason.endswith("soft")

    def test_one_pcpu(self):
        """Where the operator wants that, the vCPU is tied to the pCPU it was packed onto."""
        entitlement = only(domain(pref_core="1.5"), one_pcpu=True)

        assert entitlement.pcpus == {entitlement.home.pcpu} == {2}

    def test_one_pcpu_is_kept(self):
        """A newcomer that would be packed first does not shuffle those that are there."""
        old = [domain(f"old{i}", [reading(pcpus=[1 - i])], pref_core="0.2") for i in range(2)]
        new = domain("new", [reading(allowed=[0, 1], pcpus=[0, 1])], pref_core="0.7")

        found = entitled(new, *old, one_pcpu=True)

        assert [found[f"old{i}", 0].pcpus for i in range(2)] == [{1}, {0}]

    def test_stays_within_what_nova_allows(self):
        """The grant never leaves the pCPUs of the instance's own pinning."""
        entitlement = only(domain(readings=[reading(pcpus=[1], allowed=[1])], pref_core="0.5"))

        assert entitlement.pcpus == {1}

    def test_vcpus_of_one_domain_may_need_different_types(self):
        """An AMP VM: a slow and a fast vCPU in one instance, the third unlimited."""
        found = entitled(
            domain(readings=[reading(i) for i in range(3)], pref_core__0="0.5", pref_core__1="2")
        )

        assert [found["vm", i].core_type for i in range(3)] == ["slow", "fast", None]
        unbooked = found["vm", 2]
        assert (sorted(unbooked.pcpus), unbooked.quota.bandwidth) == ([0, 1], None)

    def test_three_core_types(self):
        """Everybody gets the slowest type that suffices."""
        host = topology({"little": (1, 1.0), "middle": (1, 1.6), "big": (1, 2.4)})
        asks = {"0.9": "little", "1.5": "middle", "2": "big"}
        domains = [domain(ask, [reading(allowed=[0, 1, 2])], pref_core=ask) for ask in asks]

        found = entitled(*domains, host=host)

        assert {ask: found[ask, 0].core_type for ask in asks} == asks
        assert found["1.5", 0].quota.bandwidth.cores == pytest.approx(1.5 / 1.6, rel=0.001)

    def test_tiny_bookings_say_what_they_get(self):
        """Below the kernel's least limit the vCPU gets more than it booked, and that is said."""
        entitlement = only(domain(pref_core="0.0001"))

        assert entitlement.quota.bandwidth == Bandwidth(1_000, 1_000_000)
        assert entitlement.note == (
            "may use 0.001 refcores: the kernel accepts no limit as low as its booking"
        )
        assert only(domain(pref_core="0.002")).note is None

    def test_the_tiniest_booking_is_survived(self):
        """A number that hardly is one crashes nothing."""
        assert only(domain(pref_core="0." + "0" * 309 + "1")).quota.bandwidth.quota_us == 1_000


class TestOverBooked:
    def test_no_room(self):
        """The one that is left out shares a core type that is fast enough, and is told."""
        domains = [domain(str(i), pref_core="0.9") for i in range(5)]

        found = entitled(*domains).values()

        (left,) = (p for p in found if p.note)
        assert left.note == "over-booked: no pCPU that it may use has 0.9 reference cores free"
        assert left.home.pcpu is None
        assert left.pcpus == {2}
        assert left.quota.bandwidth.cores == 0.45

    def test_no_room_is_shared_by_many(self):
        """The one that is left out goes where each of the others loses least by it."""
        host = topology({"slow": (8, 1.0), "fast": (1, 2.0)})
        readings = {"readings": [reading(pcpus=range(9), allowed=range(9))]}
        domains = [domain(str(i), pref_core="1", **readings) for i in range(8)]

        found = entitled(*domains, domain("x", pref_core="2", **readings), host=host)
        assert all(p.note is None for p in found.values())

        found = entitled(
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

        found = entitled(*domains, host=host).values()

        assert [p.pcpus for p in found if p.note] == [{3}]

    def test_too_large(self):
        """A vCPU larger than any core gets the fastest whole, without a limit, and is told."""
        entitlement = only(domain(pref_core="3"))

        assert entitlement.note == (
            "over-booked: no core type that it may use can give 3 reference cores per vCPU"
        )
        assert entitlement.pcpus == {2}
        assert entitlement.quota.bandwidth is None

    def test_too_large_for_its_core_type(self):
        """It stays on the type that its flavor insists on."""
        entitlement = only(domain(pref_core="1.5", core_type="slow"))

        assert "core type slow cannot give 1.5" in entitlement.note
        assert entitlement.pcpus == {0, 1}
        assert entitlement.quota.bandwidth is None

    def test_no_such_core_type(self):
        """The core type is on other hosts only: nothing is granted, the type is named."""
        entitlement = only(domain(pref_core="0.5", core_type="huge"))

        assert (entitlement.pcpus, entitlement.quota) == (None, None)
        assert entitlement.note == "not enforced: this host has no core type 'huge'"

    def test_nothing_online(self):
        """All its pCPUs are offline."""
        entitlement = only(
            domain(readings=[reading(pcpus=[2], allowed=[2])], pref_core="0.5"),
            host=topology(offline=[2]),
        )

        assert entitlement.note == "not enforced: none of the pCPUs it may use is online"

    def test_unknown_coefficient(self):
        """A speed that is not known is not guessed: no limit, and the remedy is named."""
        entitlement = only(
            domain(pref_core="0.5"), host=topology({"slow": (2, None), "fast": (1, None)})
        )

        assert (entitlement.pcpus, entitlement.quota) == (None, None)
        assert entitlement.note == (
            "not enforced: the coefficient of its core types is not known; run amp-nova calibrate"
        )

    def test_partly_unknown_coefficients(self):
        """It is kept where its booking can be kept."""
        entitlement = only(
            domain(pref_core="1"), host=topology({"slow": (2, 1.0), "odd": (1, None)})
        )

        assert entitlement.pcpus == {0, 1}

    def test_a_vcpu_that_nobody_counted(self):
        """A vCPU beyond the definition's count (hot plug, seen half-way) books nothing."""
        found = entitled(domain(readings=[reading(0), reading(4)], vcpus=2, pref_core="0.5"))

        assert found["vm", 0].quota is not None
        assert found["vm", 4].booking.kind == "best_effort"


class TestRest:
    def test_best_effort_is_left_alone(self):
        """Neither quota nor affinity, and no note."""
        entitlement = only(domain())

        assert (entitlement.pcpus, entitlement.quota) == (None, None)
        assert (entitlement.core_type, entitlement.note) == (None, None)

    def test_ips_that_nothing_counts_and_nobody_knows_are_not_limited(self):
        """What cannot be kept is said, not guessed."""
        entitlement = only(domain(ips="1G"))

        assert (entitlement.pcpus, entitlement.quota) == (None, None)
        assert "unverifiable" in entitlement.note
        assert "run amp-nova calibrate" in entitlement.note

    def test_a_core_type_alone_keeps_the_quota_of_others(self):
        """Its affinity is ours, its bandwidth is not; a policy may choose among the pCPUs."""
        entitlement = only(domain(core_type="slow"))

        assert entitlement.pcpus == {0, 1}
        assert entitlement.quota is None
        within = domain(readings=[reading(pcpus=[1])], core_type="slow")
        assert only(within).pcpus == {1}
        assert only(within).allowed == {0, 1}
        beyond = domain(readings=[reading(pcpus=[1, 2])], core_type="slow")
        assert only(beyond).pcpus == {0, 1}

    def test_a_core_type_that_cannot_be_had(self):
        """It says so."""
        assert only(domain(core_type="huge")).note == (
            "not enforced: no pCPU of core type 'huge' may be used"
        )


class TestHandsOff:
    def test_nothing_is_granted_and_the_reason_is_told(self):
        """A paused instance keeps what it has."""
        entitlement = only(
            domain(readings=[reading(pcpus=[2])], pref_core="0.5", excluded="paused by hand")
        )

        assert (entitlement.pcpus, entitlement.quota) == (None, None)
        assert entitlement.governed_by == "excluded"
        assert entitlement.core_type == "fast"
        assert entitlement.note == "not enforced: paused by hand"

    def test_best_effort_needs_no_note(self):
        """There is nothing that is not enforced; policies keep off too."""
        entitlement = only(domain(excluded="paused"))

        assert (entitlement.note, entitlement.governed_by) == (None, "excluded")

    def test_it_keeps_its_room(self):
        """Others are packed around it, where it really is."""
        held = domain("held", [reading(pcpus=[2])], pref_core="1", excluded="paused")
        other = domain("other", pref_core="1.5")

        found = entitled(held, other)

        assert found["held", 0].home.pcpu == 2
        assert found["other", 0].note.startswith("over-booked")

    def test_where_its_booking_cannot_be_had_it_takes_room_as_ever(self):
        """Moved by hand to a core too slow for it, it still is entitled to what it booked."""
        held = domain("held", [reading(pcpus=[0])], pref_core="2", excluded="paused")

        assert only(held).home.pcpu == 2

    def test_spread_over_types(self):
        """Before it was ever placed: no core type to show, room all the same."""
        entitlement = only(domain(pref_core="2", excluded="paused"))

        assert (entitlement.core_type, entitlement.home.pcpu) == (None, 2)


def test_bookings_are_packed_as_the_scheduler_packs():
    """The reserve counts here too."""
    domains = [domain(str(i), [reading(allowed=[0], pcpus=[0])], pref_core="0.5") for i in range(2)]

    assert all(p.note is None for p in entitled(*domains).values())
    assert sum(p.note is not None for p in entitled(*domains, reserve_ratio=0.1).values()) == 1
