"""Which real guest gets the fast core, policy by policy. Prints figures only.

Two real guests without a booking, one that computes and one that waits for memory, on one fast and
one really slow core, under a real agent. Their instructions are counted by the lab's counter.
Progress is the guests' own counted work over that of each alone on the slow core, so 1 is a slow
core to itself. The speed of the machine drifts, so it is measured before each policy.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.progress import rates
from tests.benchmarks.scale import SLOWED, scaled
from tests.guests.slowcore import SlowCore
from tests.lab import FAST, SLOW, Agent, opened

MASK = (32 << 20) - 1
INTERVAL_S = 1.0
WARM_UP_S = scaled(10.0, 2.0)
WATCH_S = scaled(40.0, 2.0)
ALONE_S = scaled(2.0, 0.3)
POLICIES = {
    "credit": "",
    "amp-vm": "",
    "amp-fair": "",
    "amp-r-fair": "policy_parameter = fair_ratio=0.5\n",
    "hsp": "",
    "acfs": "",
}


@pytest.fixture(scope="module")
def guests(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with opened(tmp_path_factory.mktemp("lab")) as lab, SlowCore(SLOW, SLOWED):
        made = {
            name: lab.guest(name, cpuset=f"{FAST},{SLOW}", memory_mib=48, counter=True)
            for name in ("computes", "waits")
        }
        made["waits"].remember(MASK)
        time.sleep(scaled(2.0, 0.3))  # its pages come
        yield made


def alone(guests: Any, cpu: int) -> dict[str, float]:
    """Rounds a second of each guest with one core to itself."""
    found: dict[str, float] = {}
    for name, guest in guests.items():
        others = [g for n, g in guests.items() if n != name]
        for other in others:
            other.domain.suspend()
        guest.pin(0, [cpu], 2)
        found |= rates({name: guest}, ALONE_S)
        for other in others:
            other.domain.resume()
        guest.pin(0, [FAST, SLOW], 2)
    return found


def on_fast_s(agent: Agent, guests: Any) -> dict[str, float]:
    """CPU seconds on the fast core so far, as exported."""
    return {
        name: agent.metric("amp_vcpu_cpu_seconds_total", domain=guest.spec.name, core_type="fast")
        or 0.0
        for name, guest in guests.items()
    }


def moves(agent: Agent) -> float:
    """Moves between core types so far."""
    return sum(value for name, _, value in agent.metrics() if name == "amp_migrations_total")


@pytest.mark.parametrize("policy", scaled(list(POLICIES), ["acfs"]))
def test_who_gets_the_fast_core(guests: Any, tmp_path: Path, policy: str) -> None:
    """Shares of the fast core, progress and moves."""
    slow, fast = alone(guests, SLOW), alone(guests, FAST)
    more = f"cycle_s = 0.5\npolicy = {policy}\npolicy_interval_s = {INTERVAL_S}\n{POLICIES[policy]}"
    agent = Agent(tmp_path, 2.0, more).start("chrt", "--rr", "1")
    try:
        time.sleep(WARM_UP_S)
        before, moved = on_fast_s(agent, guests), moves(agent)
        speeds = rates(guests, WATCH_S)
        after, moved = on_fast_s(agent, guests), moves(agent) - moved
        had = {name: after[name] - before[name] for name in guests}
        progress = {name: speeds[name] / slow[name] for name in guests}
        slowdown = {name: fast[name] / speeds[name] for name in guests}
        total = sum(had.values())
        print(
            f"\n{policy:10s}",
            *(
                f"{name}: {had[name] / total if total else 0:.1%} of the fast core, progress "
                f"{progress[name]:.3f} of {fast[name] / slow[name]:.2f}, slowdown "
                f"{slowdown[name]:.2f};"
                for name in guests
            ),
            f"mean progress {sum(progress.values()) / 2:.3f}, unfairness "
            f"{max(slowdown.values()) / min(slowdown.values()):.3f}, "
            f"{moved * 60 / WATCH_S:.0f} moves a minute",
        )
        assert agent.cli("release", "--all").returncode == 0
    finally:
        agent.stop()


MIX = {"pair": 2, "one": 1, "two": 1}
TRIED_S = scaled(40.0, 2.0)
"""Until then every vCPU has been measured on both cores, which the policies wait for."""


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One guest with two vCPUs and two with one, which all compute."""
    with opened(tmp_path_factory.mktemp("lab")) as lab, SlowCore(SLOW, SLOWED):
        yield {
            name: lab.guest(name, cpuset=f"{FAST},{SLOW}", vcpus=vcpus, counter=True)
            for name, vcpus in MIX.items()
        }


def alone_on_this_host(guests: Any) -> dict[str, float]:
    """Rounds a second of each guest while the others stand still; one vCPU has the fast core."""
    found: dict[str, float] = {}
    for name, guest in guests.items():
        others = [g for n, g in guests.items() if n != name]
        for other in others:
            other.domain.suspend()
        for vcpu in range(guest.spec.vcpus):
            guest.pin(vcpu, [FAST, SLOW][vcpu : vcpu + 1], 2)
        time.sleep(0.2)
        found |= rates({name: guest}, ALONE_S)
        for vcpu in range(guest.spec.vcpus):
            guest.pin(vcpu, [FAST, SLOW], 2)
        for other in others:
            other.domain.resume()
    return found


@pytest.mark.parametrize("policy", scaled(["credit", "acfs", "eqp", "rr", "hsp"], ["acfs"]))
def test_two_vcpus_beside_single_ones(mix: Any, tmp_path: Path, policy: str) -> None:
    """Slowdown of every guest against being alone on this host, and unfairness (saez2015).

    All have speedup 2, so alone the singles run at 2 and the pair at 3, and equal slowdown is 7/3.
    """
    alone = alone_on_this_host(mix)
    more = f"cycle_s = 0.5\npolicy = {policy}\npolicy_interval_s = {INTERVAL_S}\n"
    agent = Agent(tmp_path, 2.0, more).start("chrt", "--rr", "1")
    try:
        time.sleep(TRIED_S)
        moved = moves(agent)
        speeds = rates(mix, WATCH_S)
        moved = moves(agent) - moved
        slowdown = {name: alone[name] / speeds[name] for name in mix}
        progress = sum(speeds[name] / alone[name] for name in mix)
        print(
            f"\n{policy:8s} slowdown",
            *(f"{name} {value:.2f}," for name, value in slowdown.items()),
            f"unfairness {max(slowdown.values()) / min(slowdown.values()):.3f}, speeds over "
            f"those alone sum to {progress:.3f}, {moved * 60 / WATCH_S:.0f} moves a minute",
        )
        assert agent.cli("release", "--all").returncode == 0
    finally:
        agent.stop()
