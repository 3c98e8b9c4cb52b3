"""Where a parallel program may run, as its flavor states it."""

from hypothesis import given
from hypothesis import strategies as st

from amp_nova.control import parallel
from amp_nova.control.homes import Instance, VcpuFacts
from amp_nova.flavor.extra_specs import parse
from tests.hosts import topology

HOST = topology()
"""pCPUs 0 and 1 are slow, pCPU 2 is fast."""
ALL = frozenset({0, 1, 2})


def instance(name="vm", vcpus=2, allowed=ALL, **specs):
    """An instance whose flavor says that it is parallel, unless ``specs`` say otherwise."""
    keys = {f"amp:{key}": value for key, value in {"parallel": "true", **specs}.items()}
    facts = tuple(VcpuFacts(i, allowed, allowed) for i in range(vcpus))
    return Instance(name, parse(keys, vcpus), facts)


def places(*instances):
    return dict(parallel.places(instances, HOST))


def test_it_keeps_off_fast_cores_that_are_too_few():
    assert places(instance()) == {"vm": frozenset({0, 1})}


def test_one_that_fits_everywhere_or_nowhere_may_run_anywhere():
    assert places(instance(vcpus=1)) == {}
    assert places(instance(vcpus=3)) == {}


def test_others_may_run_anywhere():
    assert places(instance(parallel="false"), instance("booked", pref_core="0.5")) == {}


def test_only_pcpus_that_libvirt_permits_count():
    assert places(instance(allowed=frozenset({0, 2}))) == {}
    assert places(instance(allowed=frozenset({1, 2}), vcpus=1)) == {}


def test_two_that_would_share_slow_cores_may_also_use_fast_ones():
    assert places(instance("a"), instance("b")) == {}


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=4))
def test_each_vcpu_finds_a_pcpu(guests):
    """Nobody is squeezed: the pCPUs left to parallel instances are enough for all their vCPUs."""
    made = [
        instance(str(i), vcpus, parallel=str(wanted).lower())
        for i, (vcpus, wanted) in enumerate(guests)
    ]
    found = places(*made)
    together = sum(len(i.vcpus) for i in made if i.resource in found)
    assert together <= len(frozenset().union(*found.values()))
    assert all(found.values())
