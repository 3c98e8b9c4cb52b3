"""Where one limit serves all vCPUs of an instance, whatever the host and the bookings are."""

from hypothesis import given
from hypothesis import strategies as st

from amp_nova.control import homes, limit
from amp_nova.control.context import Context, Terms
from amp_nova.control.entitlement import entitle
from tests.hosts import reading, topology
from tests.unit.control.test_entitlement import domain

HOSTS = st.builds(
    lambda slow, fast, ratio: topology({"slow": (slow, 1.0), "fast": (fast, ratio)}),
    st.integers(1, 4),
    st.integers(1, 4),
    st.floats(1.0, 4.0),
)
BOOKINGS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 30)), min_size=1, max_size=5)


@given(HOSTS, BOOKINGS)
def test_an_instance_has_one_limit_on_one_core_type_and_gets_its_booking(host, bookings):
    """No pCPU is over-filled by what found capacity."""
    pcpus = range(len(host.pcpus))
    instances = [
        domain(
            f"vm{i}", [reading(n, pcpus, pcpus) for n in range(vcpus)], pref_core=f"{tenths / 10}"
        )
        for i, (vcpus, tenths) in enumerate(bookings)
    ]
    terms = Terms(one_limit=True)
    packed = homes.pack(instances, host, terms, {})
    entitlements = entitle(instances, Context(host, terms, packed))

    found = limit.steady(entitlements, host, terms, speeds_vary=False).entitlements

    for instance, (_, tenths) in zip(instances, bookings, strict=True):
        made = [found[instance.resource, v.number] for v in instance.vcpus]
        assert len({e.quota.bandwidth for e in made if e.quota}) <= 1
        placed = [e for e in made if e.home.pcpu is not None]
        assert len({e.core_type for e in placed}) <= 1
        for entitlement in placed:
            quota = entitlement.quota.bandwidth
            speed = host.core_type(entitlement.core_type).coefficient
            assert (1.0 if quota is None else quota.cores) * speed >= tenths / 10 - 0.001
    assert min(packed.packing.free_cores.values()) >= -1e-6
