# SPDX-License-Identifier: Apache-2.0
"""Bin packing of bookings onto pCPUs, and CFS bandwidth limits."""

import pytest
from msgspec import structs

from amp_nova.admission.free_cores import empty
from amp_nova.admission.packing import Demand, pack, replay
from amp_nova.model.bandwidth import bandwidth
from tests.support.hosts import smt_host, topology

SLOW, FAST = frozenset({0, 1}), frozenset({2})
ALL = SLOW | FAST


def demand(key, refcores, allowed=ALL, **fields):
    """A booked vCPU; on the default host it may use two slow pCPUs (0, 1) and a fast one (2)."""
    return Demand(key, refcores, frozenset(allowed), **fields)


class TestBandwidth:
    def test_a_whole_pcpu_is_no_limit(self):
        """One thread cannot use more than one pCPU."""
        assert bandwidth(1.0, 20_000) is None
        assert bandwidth(1.5, 20_000) is None
        assert bandwidth(0.1 * 3 / 0.3, 20_000) is None


class TestPack:
    def test_decimals_that_add_up_fit(self):
        """Ten times 0.1 and three times 1/3 fill a pCPU, despite rounding errors."""
        one = topology({"slow": (1, 1.0)})

        assert pack([demand(i, 0.1) for i in range(10)], one).complete
        assert pack([demand(i, 1 / 3) for i in range(3)], one).complete
        assert not pack([demand(i, 0.1) for i in range(11)], one).complete

    @pytest.mark.parametrize(
        ("wanted", "reason"),
        [
            (
                demand("a", 2.5),
                "no core type that it may use can give 2.5 reference cores per vCPU",
            ),
            (
                demand("a", 1.5, core_type="slow"),
                "core type slow cannot give 1.5 reference cores per vCPU",
            ),
            (demand("a", 1.0, {0}), "no pCPU that it may use has 1 reference core free"),
            (demand("a", 0.5, {3}), "it may use none of the online pCPUs"),
        ],
    )
    def test_what_is_not_placed_has_a_reason(self, wanted, reason):
        """The others are placed."""
        packing = pack([wanted, demand("b", 0.5, {0}, admitted=True)], topology(offline=[3]))

        assert packing.placed.keys() == {"b"}
        assert packing.unplaced == {"a": reason}

    def test_a_vcpu_that_fits_nowhere_does_not_keep_others_from_fitting(self):
        """The others are still packed by search."""
        sizes = [0.5, 0.4, 0.3, 0.3, 0.25, 0.25, 7.0]

        packing = pack([demand(i, b) for i, b in enumerate(sizes)], topology({"slow": (2, 1.0)}))

        assert packing.unplaced.keys() == {6}

    def test_hundreds_of_vcpus_are_packed_by_first_fit(self):
        """Without search the result is still a valid packing."""
        packing = pack([demand(i, 0.3, range(120)) for i in range(400)], topology({"s": (120, 1)}))

        assert len(packing.placed) == 360

    def test_what_is_pinned_to_one_thread_may_take_the_whole_core(self):
        """Beside a busy sibling the thread is worth 0.6, so a neighbour's leaving would cost it."""
        wanted = [demand(i, 0.25, {0}) for i in range(3)]

        packing = pack(wanted, smt_host(1, 0.3))

        assert packing.complete
        assert packing.whole == {0}


def packed_again(wanted, packing):
    """The same bookings in the agent's next cycle."""
    return [
        structs.replace(d, packed=packing.placed.get(d.key), admitted=d.key in packing.placed)
        for d in wanted
    ]


class TestReplay:
    def test_a_small_pinned_guest_does_not_take_a_whole_core_from_an_established_one(self):
        """It may use few pCPUs, but on a shared thread it would take twice as much."""
        host, cores = smt_host(2, 0.5), range(4)
        whole = [demand(f"whole-{i}", 1.5, cores, packed=p) for i, p in enumerate((0, 2))]
        wanted = [*whole, demand("small", 0.3, {0, 1})]

        first = pack(wanted, host)
        again = pack(packed_again(wanted, first), host)

        assert first.placed == {"whole-0": 0, "whole-1": 2, "small": 0}
        assert again.placed == first.placed

    def test_vcpus_stay_although_others_have_left(self):
        """They could be packed more densely."""
        wanted = [demand("a", 0.25, packed=0), demand("b", 0.5, packed=1, current="slow")]

        assert pack(wanted, topology()).placed == {"a": 0, "b": 1}

    def test_what_no_longer_fits_its_pcpu_moves(self):
        """Its need has changed, or it may not be there any more; the others stay."""
        wanted = [
            demand("grown", 0.7, packed=0, current="slow"),
            demand("stays", 0.5, packed=0),
            demand("pinned", 0.25, {2}, packed=1, current="slow"),
        ]

        packing, left = replay(wanted[1:], topology(), empty(topology(), 0.0))

        assert packing.placed == {"stays": 0}
        assert [d.key for d in left] == ["pinned"]
        assert pack(wanted, topology()).complete

    def test_the_established_keep_their_places_if_not_all_fit(self):
        """Also where only the order of packing makes them fit."""
        wanted = [
            demand("small", 0.3, {0, 1}, packed=0, admitted=True),
            demand("whole", 1.5, range(4), packed=0, admitted=True),
            demand("late", 2.0, {0, 1}),
        ]

        packing = pack(wanted, smt_host(1, 0.5))

        assert packing.placed == {"small": 0, "whole": 0}


class TestStay:
    def test_an_admitted_vcpu_keeps_a_place(self):
        """A larger newcomer with fewer options does not take it; nor do two together."""
        old = demand("z", 1.0, current="slow", admitted=True)
        late = [demand("a", 1.0, {0}, current="slow"), demand("b", 0.5), demand("c", 0.5)]

        packing = pack([*late, old], topology({"slow": (1, 1.0)}))

        assert packing.placed == {"z": 0}

    def test_a_vcpu_leaves_a_core_type_that_does_not_suffice(self):
        """After a resize to a larger booking, or to a flavor with another core type."""
        grown = demand("a", 1.5, current="slow")
        moved = demand("b", 0.5, core_type="slow", current="fast")

        assert pack([grown], topology()).placed == {"a": 2}
        assert pack([moved], topology()).placed["b"] in SLOW
