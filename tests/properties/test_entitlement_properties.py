# SPDX-License-Identifier: Apache-2.0
"""Entitlements, changes and accounts: what holds for every host and every history."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_nova.accounting.delivery import Account, Conditions, add_interval, owed
from amp_nova.control import limit
from amp_nova.control.changes import change
from amp_nova.control.context import Context, Share, Terms
from amp_nova.control.entitlement import Entitlement, entitle
from amp_nova.control.homes import pack
from amp_nova.flavor.extra_specs import Booking, VcpuBooking
from amp_nova.model.allocation import Allocation
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Usage
from tests.properties.test_packing_properties import hosts, sizes
from tests.support.hosts import instance, topology

NOISE = 1e-9


@st.composite
def booked_hosts(draw, tiny=False):
    """A host and domains of up to three vCPUs, booked by reference cores, Ips or not at all."""
    host = draw(hosts())
    everything = sorted(p.id for p in host.pcpus)
    some = st.sets(st.sampled_from(everything), min_size=1)
    amounts = sizes | st.floats(1e-5, 3.0) if tiny else sizes
    names = st.none() | st.sampled_from([*(t.name for t in host.core_types), "huge"])
    domains = []
    for number in range(draw(st.integers(0, 4))):
        vcpus, places = [], {}
        for index in range(draw(st.integers(1, 3))):
            kind = draw(st.sampled_from(["pref_core"] * 4 + ["ips", "best_effort"]))
            refcores = draw(amounts) if kind == "pref_core" else None
            vcpus.append(VcpuBooking(index, refcores, 1e9 if kind == "ips" else None))
            allowed = draw(st.just(everything) | some)
            kept = draw(st.just(allowed) | some)
            places[index] = kept, allowed
        booking = Booking(
            tuple(vcpus), draw(st.sampled_from(["hard", "hard", "soft"])), 0.0, draw(names)
        )
        excluded = draw(st.sampled_from([None, None, None, "paused"]))
        domains.append(instance(f"vm{number}", booking, places, excluded=excluded))
    return host, domains


def entitled(host, domains, terms):
    """The entitlements of a host in its first cycle."""
    made = entitle(domains, Context(host, terms, pack(domains, host, terms, {})))
    return limit.steady(made, host, terms, speeds_vary=False).entitlements


def free_cores(host, found):
    """What is left of each pCPU."""
    free = dict.fromkeys((p.id for p in host.pcpus), 1.0)
    for entitlement in found.values():
        if (pcpu := entitlement.home.pcpu) is not None:
            free[pcpu] -= entitlement.booking.refcores / host.type_of(pcpu).coefficient
    return free.values()


@given(booked_hosts(tiny=True), st.sampled_from([0.0, 0.2]), st.booleans())
def test_every_booking_is_enforced_or_noted_and_no_pcpu_over_booked(case, reserve_ratio, one_pcpu):
    """A limit is worth its booking within 0.1 %, on pCPUs that may be used, or a note says why."""
    host, domains = case

    found = entitled(host, domains, Terms(reserve_ratio, one_pcpu))

    assert min(free_cores(host, found)) >= -1e-6
    for domain in domains:
        for index, now in domain.vcpus.items():
            entitlement = found[domain.resource, index]
            booked = domain.booking.vcpus[index]
            if entitlement.pcpus is None:
                assert booked.kind == "best_effort" or entitlement.note
                continue
            assert domain.excluded is None
            assert entitlement.pcpus
            assert entitlement.pcpus <= now.allowed
            core_type = host.only_type(entitlement.pcpus)
            assert domain.booking.core_type in (None, core_type.name)
            if booked.refcores is None:
                assert entitlement.share is None or entitlement.share.by_core_type
                continue
            assert core_type.name == entitlement.core_type
            bandwidth = entitlement.limit
            gets = core_type.coefficient * (bandwidth.cores if bandwidth else 1.0)
            if domain.booking.limit == "soft":
                assert entitlement.note or gets >= booked.refcores * 0.999
                continue
            if entitlement.note is None:
                assert gets == pytest.approx(booked.refcores, rel=0.011)
                if bandwidth and bandwidth.quota_us > 1_000:
                    assert gets == pytest.approx(booked.refcores, rel=0.001)
            elif entitlement.note.startswith("over-booked"):
                assert gets <= booked.refcores * 1.001 or (
                    bandwidth and bandwidth.quota_us == 1_000
                )


@given(hosts(), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 30)), min_size=1, max_size=5))
def test_an_instance_has_one_limit_on_one_core_type_and_gets_its_booking(host, bookings):
    """Where one limit serves all vCPUs; no pCPU is over-filled by what found capacity."""
    pcpus = frozenset(p.id for p in host.pcpus)
    instances = [
        instance(
            f"vm{number}",
            Booking(tuple(VcpuBooking(i, tenths / 10) for i in range(vcpus))),
            dict.fromkeys(range(vcpus), (pcpus, pcpus)),
        )
        for number, (vcpus, tenths) in enumerate(bookings)
    ]

    found = entitled(host, instances, Terms(one_limit=True))

    for one, (_, tenths) in zip(instances, bookings, strict=True):
        made = [found[one.resource, index] for index in one.vcpus]
        assert len({e.limit for e in made if e.share}) <= 1
        placed = [e for e in made if e.home.pcpu is not None]
        assert len({e.core_type for e in placed}) <= 1
        for entitlement in placed:
            limit = entitlement.limit
            speed = host.core_type(entitlement.core_type).coefficient
            assert (1.0 if limit is None else limit.cores) * speed >= tenths / 10 - 0.001
    assert min(free_cores(host, found)) >= -1e-6


limits = st.none() | st.tuples(
    st.sampled_from([1_000, 5_000, 10_000, 50_000, 100_000, 150_000]),
    st.sampled_from([10_000, 20_000, 100_000]),
).map(lambda q: Bandwidth(*q))
places = st.sets(st.integers(0, 4), min_size=1)


@given(places, limits, st.none() | places, limits, st.booleans())
def test_no_step_gives_more_than_before_or_after(before, limit, after, wanted, limits_too):
    """From any state to any other; and only what differs is written: a write refills a group."""
    host = topology({"slow": (2, 1.0), "middle": (1, 1.6), "fast": (2, 2.4)})

    def greatest(pcpus, bandwidth):
        share = min(1.0, bandwidth.cores) if bandwidth else 1.0
        return share * max(host.type_of(p).coefficient for p in pcpus)

    now = Allocation(frozenset(before), limit)
    share = {"share": Share(), "limit": wanted} if limits_too else {}
    kept = None if after is None else frozenset(after)
    entitlement = Entitlement(("vm", 0), VcpuBooking(0), frozenset(range(5)), kept, **share)
    end = wanted if limits_too else limit
    most = max(greatest(before, limit), greatest(after or before, end))

    pcpus, bandwidth = frozenset(before), limit
    for step in found.steps if (found := change(now, entitlement)) else ():
        if step.pcpus is not None:
            assert step.pcpus != pcpus
            pcpus = step.pcpus
        else:
            assert step.bandwidth != bandwidth
            bandwidth = step.bandwidth
        assert greatest(pcpus, bandwidth) <= most + NOISE
    assert (pcpus, bandwidth) == (frozenset(after or before), end)


shares = st.integers(0, 100).map(lambda n: n / 100)


@st.composite
def usages(draw):
    """An interval of any kind; run, throttled and waiting time do not exceed it."""
    wall = draw(st.sampled_from([0.1, 1.0, 2.5]))
    run = draw(shares)
    throttled = draw(shares) * (1 - run)
    others = draw(shares) * (1 - run - throttled)
    return Usage(wall, run * wall, (throttled + others) * wall, throttled * wall)


@given(
    st.lists(usages(), min_size=1, max_size=30),
    sizes,
    st.sampled_from([1.0, 1.5, 2.4]),
    st.sampled_from([0.0, 0.02, 0.1]),
)
def test_the_account_adds_up(intervals, refcores, coefficient, edge_s):
    """Causes add up to what was owed and not delivered; nothing negative, nothing twice."""
    ran_under = Conditions(0, 1, coefficient, VcpuBooking(0, refcores), edge_s)
    account, lacks, edge = Account(), 0.0, refcores * edge_s
    balance = 0.0
    for used in intervals:
        account = add_interval(account, used, ran_under, 3.0)
        delivered = used.run_s * coefficient
        balance += owed(used, refcores, delivered) - delivered
        balance = max(balance, -edge)
        lacks += max(0.0, balance - edge)
        balance = min(balance, edge)

    assert sum(account.shortfall_ref_s) == pytest.approx(lacks, abs=1e-6)
    assert min(account.shortfall_ref_s) >= -NOISE
    assert account.ref_s == pytest.approx(sum(u.run_s for u in intervals) * coefficient)
    assert account.cpu_s == pytest.approx((sum(u.run_s for u in intervals),))


@given(usages(), sizes, st.sampled_from([1.0, 2.4]))
def test_never_owed_more_than_booked_or_wanted(used, refcores, coefficient):
    """Owed is at most the booking; a vCPU that got all it wanted, or its booking, lacks nothing."""
    delivered = used.run_s * coefficient
    due = owed(used, refcores, delivered)

    assert 0.0 <= due <= refcores * used.wall_s + NOISE
    if delivered >= refcores * used.wall_s or (used.wait_s == 0.0 and refcores <= coefficient):
        assert delivered >= due - NOISE
