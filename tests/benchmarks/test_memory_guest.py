"""What estimators find for real guests that compute and that wait for memory. Prints figures only.

The slow core is made by a long interrupt, which slows memory work down as much as any other: the
speedup of both guests should be the coefficient. The guests are emulated, and their counter has
instructions only: what can be tested here is sampling, on real counters and real moves.
"""

import time
from typing import Any

import pytest

from tests.benchmarks.scale import SLOWED, scaled
from tests.guests.slowcore import SlowCore
from tests.lab import FAST, SLOW, Agent, opened

STAY_S = scaled(12.0, 0.5)
SETTLE_S = scaled(2.0, 0.3)
MASK = (32 << 20) - 1


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with opened(tmp_path_factory.mktemp("lab")) as made, SlowCore(SLOW, SLOWED):
        yield made


@pytest.mark.parametrize("kind", scaled(["computes", "reads memory"], ["computes"]))
def test_what_sampling_says(lab: Any, tmp_path: Any, kind: str) -> None:
    """One guest alone on the slow core, then on the fast one; its own work, and the estimate."""
    guest = lab.guest(kind[:5].strip(), cpuset=str(SLOW), memory_mib=48, counter=True)
    agent = Agent(tmp_path, 2.0, "coefficients = adaptive\n").start()
    try:
        if kind == "reads memory":
            guest.remember(MASK)
            time.sleep(scaled(2.0, 0.3))  # its pages come
        speeds = []
        for cpu in (SLOW, FAST, SLOW, FAST):
            guest.pin(0, [cpu], 2)
            time.sleep(SETTLE_S)
            rounds, ns = guest.rounds()[0], guest.cpu_ns()[0]
            time.sleep(STAY_S)
            speeds.append((guest.rounds()[0] - rounds) / (guest.cpu_ns()[0] - ns) * 1e9)
        found = [
            (labels["source"], value)
            for name, labels, value in agent.metrics()
            if name == "amp_vcpu_speedup_ratio"
        ]
        error = agent.metric("amp_vcpu_speedup_error_ratio")
        drift = agent.metric("amp_coefficient_drift_ratio")
        print(
            f"\n{kind}: rounds per CPU second, slow and fast in turn: "
            f"{', '.join(f'{s:.1f}' for s in speeds)}"
        )
        print(
            f"{kind}: own speedup {(speeds[1] + speeds[3]) / (speeds[0] + speeds[2]):.3f}, "
            f"estimated {found}, error {error}, drift against 2.0: {drift}"
        )
    finally:
        agent.stop()
        guest.close()
