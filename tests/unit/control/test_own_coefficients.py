# SPDX-License-Identifier: Apache-2.0
"""Packing by own coefficients: more where there is room, never at another booking's cost."""

import pytest

from amp_nova.admission.packing import Demand, need_cores
from amp_nova.control import own_coefficients
from tests.support.hosts import topology

HOST = topology({"slow": (1, 1.0), "fast": (2, 2.0)})
EVERYWHERE = frozenset(p.id for p in HOST.pcpus)


def demand(name, refcores, own=None, core_type="fast"):
    coefficients = {} if own is None else {"fast": own}
    return Demand((name, 0), refcores, EVERYWHERE, core_type, core_type, coefficients=coefficients)


def packed(*demands):
    """Share of a pCPU of each, the sum on every pCPU, and what found no room."""
    packing, own = own_coefficients.pack(demands, HOST, 0.0)
    used = dict.fromkeys(EVERYWHERE, 0.0)
    shares = {}
    for d in demands:
        pcpu = packing.placed[d.key]
        eased = Demand(
            d.key, d.refcores, d.allowed, coefficients=own.get(d.key, own_coefficients.NONE)
        )
        shares[d.key[0]] = need_cores(eased, HOST.type_of(pcpu))
        used[pcpu] += shares[d.key[0]]
    assert all(free == pytest.approx(1.0 - used[p]) for p, free in packing.free_cores.items())
    assert max(used.values()) <= 1.0 + 1e-9
    return shares


def test_a_vcpu_that_gains_less_gets_more_of_the_core():
    """Half a reference core is 1/2.2 of a fast one for work that is 1.1 times as fast there."""
    assert packed(demand("memory", 0.5, own=1.1), demand("cpu", 0.5)) == {
        "memory": pytest.approx(0.5 / 1.1),
        "cpu": 0.25,
    }


def test_others_keep_their_share_when_there_is_no_room_for_more():
    """Admission counted with 0.25 for everyone: that is what everyone gets at the least."""
    others = [demand(f"cpu{i}", 1.9) for i in range(2)]

    shares = packed(demand("memory", 0.1, own=1.0), *others)

    assert shares == {"memory": 0.05, "cpu0": 0.95, "cpu1": 0.95}


def test_what_is_free_is_given_as_far_as_it_goes():
    """Of what two need beyond their share, the half is there; each gets the half."""
    shares = packed(demand("memory", 0.5, own=1.0), demand("cpu0", 1.2), demand("cpu1", 1.2))

    assert 0.25 < shares["memory"] <= 0.4
    assert (shares["cpu0"], shares["cpu1"]) == (0.6, 0.6)


def test_a_booking_never_needs_more_than_a_whole_core():
    """More than a whole core of its type cannot be had, so the hardware's worth counts there."""
    assert own_coefficients.bounded({"fast": 1.1}, 1.6, HOST) == {"fast": 1.6}
    assert own_coefficients.bounded({"fast": 1.1}, 0.5, HOST) == {"fast": 1.1}
    assert own_coefficients.bounded({"fast": 1.1, "gone": 1.0}, 5.0, HOST) == {"fast": 2.0}
    assert packed(demand("memory", 1.6, own=1.6)) == {"memory": 1.0}
