# SPDX-License-Identifier: Apache-2.0
"""What every vCPU is entitled to, and what is said if that cannot be enforced."""

import pytest
from msgspec import structs

from amp_nova.control import limit
from amp_nova.control.context import Context, Terms
from amp_nova.control.entitlement import entitle
from amp_nova.control.homes import pack
from amp_nova.flavor.extra_specs import parse
from amp_nova.model.bandwidth import Bandwidth
from tests.support.hosts import instance, reading, smt_host, topology

UNKNOWN_SPEED = topology({"slow": (2, None), "fast": (1, None)})


def domain(resource="vm", readings=None, excluded=None, vcpus=None, **specs):
    """An instance with extra specs given without their prefix; ``__`` stands for a dot."""
    readings = readings or [reading()]
    booking = parse(
        {f"amp:{k.replace('__', '.')}": v for k, v in specs.items()}, vcpus or len(readings)
    )
    places = {r.index: (r.pcpus, r.allowed) for r in readings}
    return instance(resource, booking, places, excluded=excluded)


def entitled(*instances, host=None, **terms):
    """All entitlements on the usual host: two slow pCPUs (0, 1), one fast (2)."""
    host, terms = host or topology(), Terms(**terms)
    context = Context(host, terms, pack(instances, host, terms, {}))
    return limit.steady(entitle(instances, context), host, terms, speeds_vary=False).entitlements


def only(instance, **given):
    """The entitlement of the only vCPU of an instance."""
    (entitlement,) = entitled(instance, **given).values()
    return entitlement


@pytest.mark.parametrize(
    ("specs", "pcpus", "cores", "reason"),
    [
        ({"pref_core": "0.5"}, {0, 1}, 0.5, "0.5 refcores / 1 on slow"),
        ({"pref_core": "1.5"}, {2}, 0.75, "1.5 refcores / 2 on fast"),
        # One vCPU cannot use more than one pCPU.
        ({"pref_core": "2"}, {2}, None, "2 refcores / 2 on fast"),
        # Nobody booked the rest.
        ({"pref_core": "0.5", "limit": "soft"}, {0, 1}, None, "0.5 refcores / 1 on slow, soft"),
    ],
)
def test_a_booking_is_a_share_of_the_slowest_core_type_that_suffices(specs, pcpus, cores, reason):
    """The share depends on the coefficient; an earlier limit is removed if there is none now."""
    entitlement = only(domain(**specs))

    assert entitlement.pcpus == pcpus
    assert entitlement.governed_by == "booking"
    quota = entitlement.limit
    assert (None if quota is None else quota.cores) == cores
    assert (entitlement.note, entitlement.reason) == (None, reason)


def test_each_thread_of_a_core_has_periods_of_its_own():
    """Its siblings would else be throttled in step with it, where that matters."""
    for factor, differ in ((0.6, True), (1.0, False)):
        host = smt_host(1, factor)
        two = [domain(f"vm{i}", [reading(pcpus=(0, 1))], pref_core="1.2") for i in range(2)]

        found = entitled(*two, host=host)

        periods = {e.limit.period_us for e in found.values()}
        assert (len(periods) == 2) == differ, periods


def test_one_pcpu_is_kept():
    """A newcomer that would be packed first does not move those that are there."""
    old = [domain(f"old{i}", [reading(pcpus=[1 - i])], pref_core="0.2") for i in range(2)]
    new = domain("new", [reading(allowed=[0, 1], pcpus=[0, 1])], pref_core="0.7")

    found = entitled(new, *old, one_pcpu=True)

    assert [found[f"old{i}", 0].pcpus for i in range(2)] == [{1}, {0}]


def test_tiny_bookings_say_what_they_get():
    """Below the kernel's least limit the vCPU gets more than it booked."""
    entitlement = only(domain(pref_core="0.0001"))

    assert entitlement.limit == Bandwidth(1_000, 1_000_000)
    assert entitlement.note == (
        "may use 0.001 refcores: the kernel accepts no limit as low as its booking"
    )
    assert only(domain(pref_core="0.002")).note is None
    assert only(domain(pref_core="0." + "0" * 309 + "1")).limit.quota_us == 1_000


@pytest.mark.parametrize(
    ("instance", "host", "note"),
    [
        (
            domain(pref_core="0.5", core_type="huge"),
            None,
            "not enforced: this host has no core type 'huge'",
        ),
        (
            domain(readings=[reading(pcpus=[2], allowed=[2])], pref_core="0.5"),
            topology(offline=[2]),
            "not enforced: it may use none of the online pCPUs",
        ),
        (
            domain(pref_core="0.5"),
            UNKNOWN_SPEED,
            "not enforced: the coefficient of its core types is not known; run amp-nova calibrate",
        ),
        (
            domain(core_type="huge"),
            None,
            "not enforced: no pCPU of core type 'huge' may be used",
        ),
        (
            domain(ips="1G"),
            None,
            (
                "unverifiable: its instructions are not counted, and no nominal Ips are known: "
                "run amp-nova calibrate"
            ),
        ),
        (
            domain(readings=[reading(pcpus=[2])], pref_core="0.5", excluded="paused by hand"),
            None,
            "not enforced: paused by hand",
        ),
    ],
    ids=["core type", "offline", "unknown speed", "core type alone", "Ips", "excluded"],
)
def test_what_cannot_be_enforced_is_noted_and_left_as_it_is(instance, host, note):
    """Nothing is guessed, and the remedy is named if there is one."""
    entitlement = only(instance, host=host)

    assert (entitlement.pcpus, entitlement.share) == (None, None)
    assert entitlement.note == note


REALTIME = "ineffective: its thread has a real-time class, to which no limit applies"
LIMITED = "ineffective: the limit of machine.slice is 0.5 cores (50000/100000 us), and the vCPUs "
LIMITED += "in it need 0.6"


def hindered(instance, realtime=False, **limits):
    """An instance whose vCPUs have a real-time class, or limits above (in percent of a pCPU)."""
    ceilings = tuple((f"machine.{g}", Bandwidth(n * 1000, 100_000)) for g, n in limits.items())
    vcpus = {
        index: structs.replace(now, realtime=realtime, ceilings=ceilings)
        for index, now in instance.vcpus.items()
    }
    return structs.replace(instance, vcpus=vcpus)


@pytest.mark.parametrize(
    ("instances", "note"),
    [
        ([hindered(domain(pref_core="0.3"), realtime=True)], REALTIME),
        ([hindered(domain(pref_core="2"), realtime=True)], None),
        ([hindered(domain(pref_core="0.3", limit="soft"), realtime=True)], None),
        ([hindered(domain(), realtime=True)], None),
        ([hindered(domain(pref_core="0.3"), slice=50)], None),
        ([hindered(domain(r, pref_core="0.3"), slice=50) for r in "ab"], LIMITED),
        ([hindered(domain(r, pref_core="0.3"), other=90, slice=50) for r in "ab"], LIMITED),
        ([hindered(domain(r, pref_core="0.25"), slice=50) for r in "ab"], None),
        ([hindered(domain(r, pref_core="0.3"), **{f"{r}.scope": 50}) for r in "ab"], None),
    ],
    ids=[
        "real time",
        "real time, a whole core",
        "real time, soft",
        "real time, best effort",
        "enough",
        "too little in all",
        "two limits",
        "exactly enough",
        "a limit each",
    ],
)
def test_a_limit_that_something_else_makes_ineffective_is_noted(instances, note):
    """It is written all the same: it counts again as soon as the other is gone."""
    for entitlement in entitled(*instances).values():
        assert (entitlement.note, entitlement.ineffective) == (note, note is not None)
        assert entitlement.booking.kind == "best_effort" or entitlement.share is not None


def test_a_core_type_of_unknown_speed_is_avoided():
    """The vCPU is placed where its booking can be enforced."""
    entitlement = only(domain(pref_core="1"), host=topology({"slow": (2, 1.0), "odd": (1, None)}))

    assert entitlement.pcpus == {0, 1}


@pytest.mark.parametrize(
    ("specs", "why", "pcpus"),
    [
        ({"pref_core": "3"}, "no core type that it may use can give 3 reference cores", {2}),
        ({"pref_core": "1.5", "core_type": "slow"}, "core type slow cannot give 1.5", {0, 1}),
    ],
)
def test_a_vcpu_larger_than_any_core_gets_the_fastest_whole(specs, why, pcpus):
    """Without a limit, within the core type that its flavor requires."""
    entitlement = only(domain(**specs))

    assert entitlement.note.startswith(f"over-booked: {why}")
    assert (entitlement.pcpus, entitlement.limit) == (pcpus, None)


def test_what_finds_no_capacity_is_limited_to_its_booking_all_the_same():
    """It shares a core type that is fast enough."""
    found = entitled(*(domain(str(i), pref_core="0.9") for i in range(5))).values()

    (left,) = (p for p in found if p.note)
    assert left.note == "over-booked: no pCPU that it may use has 0.9 reference cores free"
    assert (left.home.pcpu, left.pcpus, left.limit.cores) == (None, {2}, 0.45)


def test_what_finds_no_capacity_stays_on_a_type_that_is_fast_enough():
    """A move would not help."""
    host = topology({"slow": (3, 1.0), "fast": (1, 2.0)})
    on_fast = reading(pcpus=[3], allowed=range(4))

    found = entitled(*(domain(str(i), [on_fast], pref_core="0.9") for i in range(6)), host=host)

    assert [p.pcpus for p in found.values() if p.note] == [{3}]


def test_a_vcpu_beyond_the_definition_books_nothing():
    """Hot plug, observed half-way."""
    found = entitled(domain(readings=[reading(0), reading(4)], vcpus=2, pref_core="0.5"))

    assert found["vm", 0].share is not None
    assert found["vm", 4].booking.kind == "best_effort"


def test_best_effort_is_left_alone():
    """Neither quota nor affinity, and no note."""
    entitlement = only(domain())

    assert (entitlement.pcpus, entitlement.share, entitlement.core_type) == (None, None, None)
    assert entitlement.note is None
    paused = only(domain(excluded="paused"))
    assert (paused.note, paused.governed_by) == (None, "excluded")


@pytest.mark.parametrize(("pcpus", "kept"), [([0, 1, 2], {0, 1}), ([1], {1}), ([1, 2], {0, 1})])
def test_a_core_type_alone_keeps_the_quota_of_others(pcpus, kept):
    """An affinity within the type stays; a policy may choose among the pCPUs."""
    entitlement = only(domain(readings=[reading(pcpus=pcpus)], core_type="slow"))

    assert (entitlement.pcpus, entitlement.allowed) == (kept, {0, 1})
    assert entitlement.share is None


@pytest.mark.parametrize(("pcpus", "core_type"), [([2], "fast"), ([0], "slow"), ([0, 1, 2], None)])
def test_an_excluded_instance_has_capacity_where_its_booking_fits(pcpus, core_type):
    """Others are packed around it; also if it was moved to a core too slow, or never placed."""
    paused = domain("paused", [reading(pcpus=pcpus)], pref_core="2", excluded="paused")

    found = entitled(paused, domain("other", pref_core="1.5"))

    assert (found["paused", 0].core_type, found["paused", 0].home.pcpu) == (core_type, 2)
    assert found["other", 0].note.startswith("over-booked")


def test_the_reserve_counts():
    """As in the scheduler."""
    domains = [domain(str(i), [reading(allowed=[0], pcpus=[0])], pref_core="0.5") for i in range(2)]

    assert all(p.note is None for p in entitled(*domains).values())
    assert sum(p.note is not None for p in entitled(*domains, reserve_ratio=0.1).values()) == 1
