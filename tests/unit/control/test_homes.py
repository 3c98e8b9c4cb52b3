# SPDX-License-Identifier: Apache-2.0
"""Where vCPUs are placed: all of an instance on one core type, parallel programs together."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_nova.agent.loop import Loop
from amp_nova.control import homes
from amp_nova.flavor.extra_specs import parse
from amp_nova.policies.acfs import AcfsPolicy
from amp_nova.policies.none import NonePolicy
from amp_nova_lab.host import SimHost
from tests.support.hosts import instance, limit, reading, smt_host, topology
from tests.unit.control.test_entitlement import domain, entitled
from tests.unit.lab.builders import guest


def several(count, **specs):
    """An instance of that many vCPUs."""
    return domain(readings=[reading(i) for i in range(count)], **specs)


@pytest.mark.parametrize(
    ("specs", "vcpus", "why"),
    [
        ({"amp:pref_core": "0.5", "amp:pref_core.1": "0.8"}, 2, "differ"),
        ({"amp:pref_core.1": "0.8"}, 2, "differ"),
        ({"amp:ips": "100M"}, 2, "instructions per second"),
        ({"amp:pref_core": "0.5", "amp:burst_s": "1"}, 2, "burst"),
        ({"amp:pref_core": "0.5"}, 4, None),
        ({"amp:ips": "100M"}, 1, None),
        ({"amp:pref_core": "0.5", "amp:burst_s": "1"}, 1, None),
        ({"amp:core_type": "fast"}, 2, None),
    ],
)
def test_what_needs_a_limit_for_each_vcpu_is_refused(specs, vcpus, why):
    """The reason names cause and remedy; equal bookings, single vCPUs and best effort need none."""
    found = homes.refusal(parse(specs, vcpus))

    assert (found is None) == (why is None)
    if why is not None:
        assert why in found
        assert "[agent] writer = cgroup" in found


@pytest.mark.parametrize(
    ("slow", "core_type", "cores"),
    [(1, "fast", 0.3), (2, "slow", 0.6)],
    ids=["one slow pCPU holds one of them only", "two hold both"],
)
def test_all_vcpus_are_on_the_slowest_core_type_that_holds_them(slow, core_type, cores):
    """They are not split."""
    host = topology({"slow": (slow, 1.0), "fast": (1, 2.0)})

    found = entitled(several(2, pref_core="0.6"), host=host, one_limit=True)

    assert {e.core_type for e in found.values()} == {core_type}
    assert {e.limit.cores for e in found.values()} == {cores}
    assert not any(e.note for e in found.values())


def test_what_fits_on_no_single_core_type_is_over_booked():
    """The note says which vCPUs found no capacity."""
    host = topology({"slow": (1, 1.0), "fast": (1, 2.0)})

    found = entitled(several(4, pref_core="0.7"), host=host, one_limit=True)

    assert len({e.core_type for e in found.values()}) == 1
    assert any("over-booked" in (e.note or "") for e in found.values())


def test_all_vcpus_have_the_greatest_limit():
    """Hardware threads that siblings slow down need more than one that is alone on its core."""
    host = smt_host(2)
    readings = [reading(0, (0, 1), (0, 1)), reading(1, (2, 3), (2, 3))]
    alone = domain("alone", [reading(0, (1,), (1,))], pref_core="0.5")

    found = entitled(alone, domain(readings=readings, pref_core="0.5"), host=host, one_limit=True)

    limits = {found["vm", i].limit for i in range(2)}
    assert len(limits) == 1
    assert limits.pop().cores >= limit(0.25).cores


ALL = frozenset({0, 1, 2})


def parallel(name="vm", vcpus=2, allowed=ALL, **specs):
    """An instance whose flavor says that it is parallel, unless ``specs`` say otherwise."""
    keys = {f"amp:{key}": value for key, value in {"parallel": "true", **specs}.items()}
    return instance(name, parse(keys, vcpus), dict.fromkeys(range(vcpus), (allowed,) * 2))


def places(*instances):
    return dict(homes.parallel_places(instances, topology()))


@pytest.mark.parametrize(
    ("instances", "found"),
    [
        ([parallel()], {"vm": {0, 1}}),  # off fast cores that are too few for it
        ([parallel(vcpus=1)], {}),  # fits everywhere
        ([parallel(vcpus=3)], {}),  # fits nowhere
        ([parallel(parallel="false"), parallel("booked", pref_core="0.5")], {}),
        ([parallel(allowed=frozenset({0, 2}))], {}),  # libvirt permits one slow pCPU
        ([parallel("a"), parallel("b")], {}),  # they would share slow cores
    ],
)
def test_a_parallel_instance_keeps_to_core_types_that_have_a_pcpu_for_each_vcpu(instances, found):
    """If there are others, and if all such instances find room there."""
    assert places(*instances) == found


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=4))
def test_each_vcpu_finds_a_pcpu(guests):
    """Nobody is squeezed: the pCPUs left to parallel instances are enough for all their vCPUs."""
    made = [
        parallel(str(i), vcpus, parallel=str(wanted).lower())
        for i, (vcpus, wanted) in enumerate(guests)
    ]
    found = places(*made)
    together = sum(len(i.vcpus) for i in made if i.resource in found)
    assert together <= len(frozenset().union(*found.values()))
    assert all(found.values())


@pytest.mark.parametrize("policy", [NonePolicy, AcfsPolicy])
def test_where_guests_cannot_span_core_types_none_does(policy):
    """Arm: booked, best effort, and of both kinds; each stays where it was put first."""
    host = SimHost(
        replace(topology({"slow": (4, 1.0), "fast": (4, 2.0)}), one_type=True),
        [
            guest("booked", vcpus=6, pref_core="0.3"),
            guest("large", vcpus=3),
            guest("small", vcpus=2),
            guest("mixed", vcpus=2, pref_core__1="1.5"),
        ],
    )
    loop = Loop(host, host, policy=policy())
    first = None
    loop.cycle()
    for second in range(1, 13):
        host.advance(float(second))
        now = {
            d.domain.resource: {host.topology.only_type(v.reading.pcpus).name for v in d.vcpus}
            for d in loop.cycle().domains
        }
        first = first or now
        assert now == first
        assert all(len(types) == 1 for types in now.values()), now
    assert set().union(*first.values()) == {"slow", "fast"}
