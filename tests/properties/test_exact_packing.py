"""The oracle of the random walk: what the product packs, the exact search packs as well."""

from hypothesis import given, settings
from hypothesis import strategies as st

from amp_nova.admission.packing import Demand, pack
from tests.properties.examples import examples
from tests.support.exact_packing import Packing
from tests.support.hosts import smt_host, topology

HOSTS = (
    topology({"slow": (3, 1.0)}),
    topology({"slow": (2, 1.0), "fast": (1, 2.0)}),
    smt_host(2, slow=1),
)
SIZES = (0.15, 0.35, 0.6, 1.0, 1.5, 2.0)


@settings(max_examples=examples(200))
@given(st.sampled_from(HOSTS), st.lists(st.sampled_from(SIZES), max_size=9))
def test_whatever_is_packed_is_possible(host, sizes):
    """On small hosts the product misses nothing either."""
    everything = frozenset(p.id for p in host.pcpus)
    packed = pack([Demand(key, size, everything) for key, size in enumerate(sizes)], host)

    assert packed.complete == Packing(host).fits(sizes)
    if packed.complete:
        placed = [(packed.placed[key], size) for key, size in enumerate(sizes)]
        assert Packing(host).fits((), placed)
