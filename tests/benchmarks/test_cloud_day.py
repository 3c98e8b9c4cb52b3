"""How long a simulated day of a large cloud takes: one core, no Nova::

.venv/bin/python -m pytest tests/benchmarks/test_cloud_day.py -s
"""

import time

import pytest

from amp_nova.flavor.extra_specs import parse
from amp_nova.sim.cloud.host import CloudFlavor
from amp_nova.sim.cloud.run import Cloud, run
from tests import hosts
from tests.benchmarks.scale import scaled

DAY_S = 86_400.0
(HOSTS,) = scaled((1000,), (8,))
MAKES = [
    hosts.topology({"slow": (24, 1.0)}),
    hosts.topology({"fast": (20, 2.0)}),
    hosts.topology({"slow": (12, 1.0), "fast": (12, 2.0)}),
    hosts.topology({"slow": (18, 1.2), "fast": (6, 3.0)}),
]
FLAVORS = [
    CloudFlavor(name, parse(specs, vcpus), share, sensitivity)
    for name, share, vcpus, specs, sensitivity in (
        ("half a core", 0.20, 2, {"amp:pref_core": "0.5"}, 0.8),
        ("a core", 0.15, 2, {"amp:pref_core": "1"}, 0.8),
        ("a fast core", 0.10, 1, {"amp:pref_core": "1.6"}, 0.8),
        ("one of each", 0.10, 2, {"amp:pref_core.0": "1.5", "amp:pref_core.1": "0.3"}, 0.8),
        ("computes", 0.20, 2, {}, 0.9),
        ("serves", 0.15, 4, {}, 0.5),
        ("waits", 0.10, 2, {}, 0.1),
    )
]


@pytest.mark.timeout(1800)
def test_a_day():
    """Prints what happened and how long it took; no booking that was admitted lacks a place."""
    makes = [MAKES[n % len(MAKES)] for n in range(HOSTS)]
    cloud = Cloud(makes, FLAVORS, instances_per_host=20.0, lifetime_s=DAY_S)

    began_s = time.process_time()
    result = run(cloud, DAY_S)
    took_s = time.process_time() - began_s

    last = result.samples[-1]
    print(
        f"\n{HOSTS} hosts, {last.instances} instances, {result.arrived} arrivals in a day, "
        f"{result.refused} refused: {took_s:.1f} s of one core"
    )
    assert last.instances == pytest.approx(20 * HOSTS, rel=0.5)
    assert all(sample.unplaced == 0 for sample in result.samples)
