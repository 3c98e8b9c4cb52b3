"""Where one limit serves all vCPUs of an instance: what is refused, and where the rest is put."""

import pytest

from amp_nova.control import one_limit
from amp_nova.control.context import Context, Terms
from amp_nova.flavor.extra_specs import parse
from tests.hosts import limit, reading, smt_host, topology
from tests.unit.control.test_entitlement import domain


def entitled(*instances, host=None, **terms):
    """All entitlements on the usual host: two slow pCPUs (0, 1), one fast (2)."""
    host, terms = host or topology(), Terms(one_limit=True, **terms)
    packed = one_limit.pack(instances, host, terms.reserve_ratio, terms.one_pcpu, {})
    return one_limit.entitle(instances, Context(host, terms, packed))


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
    ],
)
def test_what_needs_a_limit_for_each_vcpu_is_refused(specs, vcpus, why):
    """The reason names the cause and the remedy."""
    found = one_limit.refusal(parse(specs, vcpus))

    assert why in found
    assert "[agent] writer = cgroup" in found


@pytest.mark.parametrize(
    ("specs", "vcpus"),
    [
        ({"amp:pref_core": "0.5"}, 4),
        ({"amp:ips": "100M"}, 1),
        ({"amp:pref_core": "0.5", "amp:burst_s": "1"}, 1),
        ({}, 4),
        ({"amp:core_type": "fast"}, 2),
    ],
)
def test_what_one_limit_can_keep_is_not(specs, vcpus):
    """Equal bookings, single vCPUs and best effort."""
    assert one_limit.refusal(parse(specs, vcpus)) is None


def test_all_vcpus_are_on_one_core_type():
    """The slow pCPU holds one of them, the fast one both: they are not split."""
    found = entitled(several(2, pref_core="0.6"), host=topology({"slow": (1, 1.0), "fast": (1, 2)}))

    assert {e.core_type for e in found.values()} == {"fast"}
    assert {e.quota.bandwidth.cores for e in found.values()} == {0.3}
    assert not any(e.note for e in found.values())


def test_the_slowest_core_type_that_holds_all_is_taken():
    """As where every vCPU has a limit of its own."""
    found = entitled(several(2, pref_core="0.6"))

    assert {e.core_type for e in found.values()} == {"slow"}
    assert {e.quota.bandwidth.cores for e in found.values()} == {0.6}


def test_what_fits_on_no_single_core_type_is_over_booked():
    """The note says which vCPUs found no capacity."""
    host = topology({"slow": (1, 1.0), "fast": (1, 2.0)})

    found = entitled(several(4, pref_core="0.7"), host=host)

    assert len({e.core_type for e in found.values()}) == 1
    assert any("over-booked" in (e.note or "") for e in found.values())


def test_all_vcpus_have_the_greatest_limit():
    """Hardware threads that siblings slow down need more than one that is alone on its core."""
    host = smt_host(2)
    readings = [reading(0, (0, 1), (0, 1)), reading(1, (2, 3), (2, 3))]
    alone = domain("alone", [reading(0, (1,), (1,))], pref_core="0.5")

    found = entitled(alone, domain(readings=readings, pref_core="0.5"), host=host)

    limits = {found["vm", i].quota.bandwidth for i in range(2)}
    assert len(limits) == 1
    assert limits.pop().cores >= limit(0.25).cores
