"""Contract, changes and accounts: what holds for every host and every history."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_nova.accounting.delivery import Account, Tenure, owed, settle
from amp_nova.control.changes import change
from amp_nova.control.entitlement import Booked, Terms, promises
from amp_nova.flavor.extra_specs import Booking, VcpuBooking
from amp_nova.model.allocation import Grant
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Usage
from tests.hosts import reading, topology
from tests.properties.test_capacity_properties import hosts, sizes

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
        vcpus, readings = [], []
        for index in range(draw(st.integers(1, 3))):
            kind = draw(st.sampled_from(["pref_core"] * 4 + ["ips", "best_effort"]))
            refcores = draw(amounts) if kind == "pref_core" else None
            vcpus.append(VcpuBooking(index, kind, refcores, 1e9 if kind == "ips" else None))
            allowed = draw(st.just(everything) | some)
            readings.append(reading(index, draw(st.just(allowed) | some), allowed))
        booking = Booking(
            tuple(vcpus), draw(st.sampled_from(["hard", "hard", "soft"])), 0.0, draw(names)
        )
        held = draw(st.sampled_from([None, None, None, "paused"]))
        domains.append(Booked(f"vm{number}", booking, readings, held))
    return host, domains


@given(booked_hosts(tiny=True), st.sampled_from([0.0, 0.2]), st.booleans())
def test_every_promise_is_kept_or_noted(case, reserve_ratio, one_pcpu):
    """A grant is worth its booking within 0.1 %, on pCPUs that may be used, or a note says why."""
    host, domains = case

    found = promises(domains, host, Terms(reserve_ratio, one_pcpu))

    for domain in domains:
        for now in domain.readings:
            promise = found[domain.resource, now.index]
            booked = domain.booking.vcpus[now.index]
            if promise.grant is None:
                assert booked.kind == "best_effort" or promise.note
                continue
            assert domain.hands_off is None
            assert promise.grant.pcpus
            assert promise.grant.pcpus <= now.allowed
            core_type = host.only_type(promise.grant.pcpus)
            assert domain.booking.core_type in (None, core_type.name)
            if booked.refcores is None:
                assert promise.grant.limits == bool(promise.rooms)
                continue
            assert core_type.name == promise.core_type
            assert promise.grant.limits
            limit = promise.grant.bandwidth
            gets = core_type.coefficient * (limit.cores if limit else 1.0)
            if domain.booking.limit == "soft":
                assert promise.note or gets >= booked.refcores * 0.999
                continue
            if promise.note is None:
                assert gets == pytest.approx(booked.refcores, rel=0.011)
                if limit and limit.quota_us > 1_000:
                    assert gets == pytest.approx(booked.refcores, rel=0.001)
            elif promise.note.startswith("over-booked"):
                assert gets <= booked.refcores * 1.001 or (limit and limit.quota_us == 1_000)


@given(booked_hosts())
def test_room_is_kept_for_all_that_is_placed(case):
    """What is promised without a note adds up to no more than every pCPU has."""
    host, domains = case
    free = dict.fromkeys((p.id for p in host.pcpus), 1.0)

    for promise in promises(domains, host, Terms()).values():
        if promise.pcpu is not None:
            coefficient = host.type_of(promise.pcpu).coefficient
            free[promise.pcpu] -= promise.booking.refcores / coefficient

    assert all(room >= -1e-6 for room in free.values())


limits = st.none() | st.tuples(
    st.sampled_from([1_000, 5_000, 10_000, 50_000, 100_000, 150_000]),
    st.sampled_from([10_000, 20_000, 100_000]),
).map(lambda q: Bandwidth(*q))
places = st.sets(st.integers(0, 4), min_size=1)


@given(places, limits, places, limits, st.booleans())
def test_no_step_gives_more_than_before_or_after(before, limit, after, wanted, limits_too):
    """From any state to any other, in between a vCPU can never use more than at both ends."""
    host = topology({"slow": (2, 1.0), "middle": (1, 1.6), "fast": (2, 2.4)})

    def greatest(pcpus, bandwidth):
        share = min(1.0, bandwidth.cores) if bandwidth else 1.0
        return share * max(host.type_of(p).coefficient for p in pcpus)

    now = reading(0, before, range(5), limit)
    grant = Grant(("vm", 0), frozenset(after), wanted, limits=limits_too)
    end = grant.bandwidth if limits_too else limit
    most = max(greatest(before, limit), greatest(after, end))

    pcpus, bandwidth = frozenset(before), limit
    for step in found.steps if (found := change(now, grant)) else ():
        if step.pcpus is not None:
            assert step.pcpus != pcpus
            pcpus = step.pcpus
        else:
            assert step.bandwidth != bandwidth
            bandwidth = step.bandwidth
        assert greatest(pcpus, bandwidth) <= most + NOISE
    assert (pcpus, bandwidth) == (frozenset(after), end)


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
def test_the_account_adds_up(intervals, refcores, coefficient, period_s):
    """Causes add up to what was owed and not delivered; nothing negative, nothing twice."""
    terms = Tenure(0, 1, coefficient, refcores, period_s)
    account, lacks, edge = Account(), 0.0, refcores * period_s
    balance = 0.0
    for used in intervals:
        account = settle(account, used, terms, 3.0)
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
    """Owed is at most the booking; who got all it wanted, or its booking, lacks nothing."""
    delivered = used.run_s * coefficient
    due = owed(used, refcores, delivered)

    assert 0.0 <= due <= refcores * used.wall_s + NOISE
    if delivered >= refcores * used.wall_s or (used.wait_s == 0.0 and refcores <= coefficient):
        assert delivered >= due - NOISE
