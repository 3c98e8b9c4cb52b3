"""How long a simulated hour takes under every policy, twelve cores and twelve guests::

.venv/bin/python -m pytest tests/benchmarks/test_simulated_hour.py -s
"""

import statistics
import time

import pytest

from amp_nova.plugins import load_policy
from amp_nova.sim.run import run
from tests.benchmarks.scale import scaled
from tests.unit.sim.builders import guest, scenario

DURATION_S, RUNS = scaled((3600.0, 5), (20.0, 1))
SPEEDUPS = (2.4, 2.2, 2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3, 1.2, 1.1)
POLICIES = (
    *("none", "credit", "pinned", "amp-fair", "amp-vm", "amp-vcpu", "amp-r-fair"),
    *("amp-adaptive-fair", "acfs", "hsp", "prop-sp", "eqp", "rr", "a-dwrr", "integrated", "aash"),
)


def took_s(policy):
    """CPU time of one hour."""
    guests = [guest(f"vm{n}", speed=speedup) for n, speedup in enumerate(SPEEDUPS)]
    host = {"fast": 4, "slow": 8, "coefficient": 2.375}
    made = scenario(*guests, duration_s=DURATION_S, policy=policy, **host)
    began_s = time.process_time()
    run(made, load_policy(policy))
    return time.process_time() - began_s


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("policy", POLICIES)
def test_an_hour(policy):
    """Prints the median and the range of several runs."""
    found = sorted(took_s(policy) for _ in range(RUNS))

    print(f"\n{policy:<18}{statistics.median(found):>7.2f} s ({found[0]:.2f} to {found[-1]:.2f})")
