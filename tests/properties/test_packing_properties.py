# SPDX-License-Identifier: Apache-2.0
"""Properties of packing for all hosts and sets of bookings."""

import random
from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec import structs

from amp_nova.admission.packing import Demand, cores, pack
from amp_nova.model.bandwidth import PERIOD_MAX_US, QUOTA_MIN_US, bandwidth, period_us
from amp_nova.model.topology import CoreType
from tests.support.hosts import topology

NOISE = 1e-6
TYPES = ("slow", "middle", "fast")


@st.composite
def hosts(draw):
    """One to three core types of one to three pCPUs."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    coefficients = sorted(draw(st.permutations([1.0, 1.5, 2.0, 2.375]))[: len(counts)])
    return topology(dict(zip(TYPES, zip(counts, coefficients, strict=True), strict=False)))


sizes = st.integers(1, 10).map(lambda n: n / 4) | st.integers(1, 25).map(lambda n: n / 10)


@st.composite
def demands(draw, host, most=8, current=True):
    """Booked vCPUs, most of which may use every pCPU."""
    everything = frozenset(p.id for p in host.pcpus)
    some = st.just(everything) | st.frozensets(st.sampled_from(sorted(everything)), min_size=1)
    names = st.none() | st.sampled_from([t.name for t in host.core_types])
    found = []
    for key in range(draw(st.integers(0, most))):
        wants = draw(sizes), draw(some), draw(st.none() | names)
        found.append(Demand(key, *wants, draw(names) if current else None))
    return found


@st.composite
def cases(draw, **options):
    host = draw(hosts())
    return host, draw(demands(host, **options)), draw(st.sampled_from([0.0, 0.1, 0.25]))


def feasible(wanted, host, reserve_ratio=0.0):
    """Whether all bookings can be packed, by exhaustive search without ``pack``.

    One that needs more of a pCPU than may be booked, up to the whole, must be alone on it.
    """
    free = {p.id: 1.0 - reserve_ratio for p in host.pcpus}
    order = sorted(wanted, key=lambda d: -d.refcores)
    groups = {d.allowed for d in wanted}

    def place_from(at):
        if at == len(order):
            return True
        tried = set()
        for pcpu in sorted(order[at].allowed):
            core_type = host.type_of(pcpu)
            need = order[at].refcores / core_type.coefficient
            need = need if need > 1.0 + NOISE else min(need, 1.0 - reserve_ratio)
            alike = (core_type.name, round(free[pcpu], 9), *(pcpu in g for g in groups))
            if order[at].core_type not in (None, core_type.name) or need > free[pcpu] + NOISE:
                continue
            if alike in tried:
                continue
            tried.add(alike)
            free[pcpu] -= need
            found = place_from(at + 1)
            free[pcpu] += need
            if found:
                return True
        return False

    return place_from(0)


@given(cases())
def test_a_packing_honours_every_constraint_and_is_found_if_there_is_one(case):
    """No pCPU is filled above 1 - reserve, except by one vCPU; each is where it is allowed.

    ``pack`` succeeds if and only if exhaustive search does.
    """
    host, wanted, reserve_ratio = case

    packing = pack(wanted, host, reserve_ratio)

    assert packing.complete == feasible(wanted, host, reserve_ratio)
    used = {p.id: [] for p in host.pcpus}
    for demand in wanted:
        if demand.key not in packing.placed:
            assert packing.unplaced[demand.key]
            continue
        pcpu = packing.placed[demand.key]
        core_type = host.type_of(pcpu)
        assert pcpu in demand.allowed
        assert demand.core_type in (None, core_type.name)
        assert core_type.coefficient >= demand.refcores - NOISE
        used[pcpu].append(demand.refcores / core_type.coefficient)
    assert packing.placed.keys() | packing.unplaced.keys() == {d.key for d in wanted}
    assert not packing.placed.keys() & packing.unplaced.keys()
    for pcpu, shares in used.items():
        most = 1.0 if len(shares) == 1 else 1.0 - reserve_ratio
        assert sum(shares) <= most + NOISE
        left = max(0.0, 1.0 - reserve_ratio - sum(shares))
        assert packing.free_cores[pcpu] == pytest.approx(left, abs=NOISE)


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_the_bookings_does_not_matter(case, chance):
    """Scheduler and agent list them in different orders and get the same result."""
    host, wanted, reserve_ratio = case
    shuffled = list(wanted)
    chance.shuffle(shuffled)

    one, other = pack(wanted, host, reserve_ratio), pack(shuffled, host, reserve_ratio)

    assert one.placed == other.placed
    assert one.unplaced == other.unplaced


def typed(host, packing, wanted):
    """The same bookings, kept on the core types that the packing chose."""
    return [
        Demand(
            d.key,
            d.refcores,
            d.allowed,
            d.core_type,
            host.type_of(packing.placed[d.key]).name if d.key in packing.placed else d.current,
            admitted=d.key in packing.placed,
        )
        for d in wanted
    ]


def moved(host, packing, present):
    return [
        d.key
        for d in present
        if d.key in packing.placed and host.type_of(packing.placed[d.key]).name != d.current
    ]


@given(cases(current=False))
def test_packing_again_moves_nothing(case):
    """A packing is a fixed point."""
    host, wanted, reserve_ratio = case
    first = pack(wanted, host, reserve_ratio)

    again = pack(typed(host, first, wanted), host, reserve_ratio)

    assert again.placed == first.placed


@given(cases(current=False), sizes)
def test_a_newcomer_displaces_no_vcpu_unless_it_must(case, size):
    """If all others can keep their core type, they do."""
    host, wanted, reserve_ratio = case
    first = pack(wanted, host, reserve_ratio)
    assume(first.complete)
    present = typed(host, first, wanted)
    newcomer = Demand("new", size, frozenset(p.id for p in host.pcpus))

    packing = pack([*present, newcomer], host, reserve_ratio)

    locked = [Demand(d.key, d.refcores, d.allowed, d.current) for d in present]
    if feasible([*locked, newcomer], host, reserve_ratio):
        assert packing.complete
        assert moved(host, packing, present) == []
    if not packing.complete:
        assert packing.unplaced.keys() == {"new"}
        assert moved(host, packing, present) == []


@given(st.integers(1, 10**6), st.sampled_from([1.0, 1.2, 1.85, 2.375, 5.0]))
@example(1, 5.0)
def test_a_limit_is_worth_its_booking(millionths, greatest):
    """Within 0.1 % on every core type, as the kernel permits; tiny bookings get the least quota."""
    refcores = millionths / 1e6
    period = period_us(refcores / greatest)

    assert period <= PERIOD_MAX_US
    for coefficient in (1.0, greatest):
        limit = bandwidth(cores(refcores, CoreType("a", coefficient)), period)
        if limit is None:
            assert refcores == pytest.approx(coefficient)
            continue
        assert QUOTA_MIN_US <= limit.quota_us <= limit.period_us == period
        if limit.quota_us > QUOTA_MIN_US:
            assert limit.cores * coefficient == pytest.approx(refcores, rel=0.001)
        else:
            assert limit.cores * coefficient >= refcores * 0.999


def test_near_full_hosts_are_packed_almost_always():
    """On hosts of up to 10 pCPUs filled to 70 % or more, at most 1 packing in 200 is missed."""
    chance = random.Random(7)
    missed = found = 0
    for _ in range(600):
        host = topology({"slow": (chance.randint(1, 6), 1.0), "fast": (chance.randint(1, 4), 1.85)})
        everything = frozenset(p.id for p in host.pcpus)
        worth = sum(host.type_of(p).coefficient for p in everything)
        aim, wanted = worth * chance.uniform(0.7, 0.97), []
        while sum(d.refcores for d in wanted) < aim and len(wanted) < 12:
            wanted.append(Demand(len(wanted), chance.uniform(0.2, 1.7), everything))
        if feasible(wanted, host):
            found += 1
            missed += not pack(wanted, host).complete
    assert found > 100
    assert missed <= found / 200


@given(st.data())
def test_where_guests_cannot_span_core_types_each_is_on_one(data):
    """Arm; a guest that has been placed stays on its type, and one that is alone finds a type."""
    host = replace(data.draw(hosts()), one_type=True)
    everything = frozenset(p.id for p in host.pcpus)
    guests = data.draw(st.lists(st.tuples(sizes, st.integers(1, 3)), max_size=4))
    wanted = [
        Demand((guest, i), amount, everything)
        for guest, (amount, count) in enumerate(guests)
        for i in range(count)
    ]
    before = pack(wanted, host)
    newcomer = Demand(("new", 0), data.draw(sizes), everything)
    there = [
        structs.replace(d, packed=at, admitted=True, current=host.type_of(at).name)
        for d in wanted
        if (at := before.placed.get(d.key)) is not None
    ]
    after = pack([*there, newcomer], host)

    for packing in (before, after):
        types = {(k[0], host.type_of(p).name) for k, p in packing.placed.items()}
        assert len(types) == len({guest for guest, _ in types})
    assert all(host.type_of(after.placed[d.key]).name == d.current for d in there)
    for amount, count in guests[:1]:
        alone = [d for d in wanted if d.key[0] == 0]
        fits = any(
            feasible([structs.replace(d, core_type=t.name) for d in alone], host)
            for t in host.core_types
        )
        assert pack(alone, host).complete == fits, (amount, count)
