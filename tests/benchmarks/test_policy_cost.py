"""Cost of a decision of every policy with 10, 100 and 1,000 vCPUs, relative to ``credit``.

Run it with ``pytest tests/benchmarks/test_policy_cost.py -s``. It prints times and never fails on
them. The host has 64 pCPUs of two core types. vCPUs always run, in instances of four, and all their
fields are known.
"""

import random
import statistics
import time
from dataclasses import replace

from msgspec import structs

from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.plugins import load_policy, policies
from amp_nova.policies.api import Decision, HostView, VcpuView
from tests.benchmarks.scale import scaled

SIZES = scaled((10, 100, 1000), (10, 20))
DECISIONS = scaled(15, 3)
NAMES = ["slow"] * 48 + ["fast"] * 16
TOPOLOGY = Topology(
    (CoreType("slow", 1.0), CoreType("fast", 2.0)),
    tuple(PCpu(i, name, (i,), llc=i // 8 * 8, numa_node=i // 32) for i, name in enumerate(NAMES)),
    "slow",
    "benchmark",
)


def view(count):
    everywhere = frozenset(range(len(NAMES)))
    chance = random.Random(count)
    vcpus = tuple(
        VcpuView(
            (f"vm{i // 4:03}", i % 4),
            everywhere,
            everywhere,
            utilization_ratio=1.0,
            demand_ratio=1.0,
            ipc=chance.uniform(0.3, 2.0),
            speedup=chance.uniform(1.0, 2.0),
            sampled=True,
        )
        for i in range(count)
    )
    return HostView(TOPOLOGY, vcpus, dict.fromkeys(everywhere, 1.0), elapsed_s=2.5)


def follow(seen, decided):
    """The next view: every vCPU ran where it was placed."""
    each_s = 2.5 * min(1.0, len(NAMES) / len(seen.vcpus))
    vcpus = []
    for vcpu in seen.vcpus:
        pcpus = decided.places.get(vcpu.key, vcpu.pcpus)
        fast = len(pcpus) == 1 and NAMES[next(iter(pcpus))] == "fast"
        vcpus.append(
            structs.replace(vcpu, pcpus=pcpus, cpu_s=(0.0, each_s) if fast else (each_s, 0.0))
        )
    return replace(seen, vcpus=tuple(vcpus), memory=decided.memory, interval=seen.interval + 1)


def decision_s(name, count):
    """Median time of a decision in seconds, and the median number of vCPUs that it moves."""
    policy, seen = load_policy(name), view(count)
    took, moved = [], []
    for _ in range(DECISIONS):
        began = time.perf_counter()
        decided = policy.decide(seen)
        took.append(time.perf_counter() - began)
        decided = decided if isinstance(decided, Decision) else Decision(decided)
        after = follow(seen, decided)
        moves = zip(seen.vcpus, after.vcpus, strict=True)
        moved.append(sum(a.pcpus != b.pcpus for a, b in moves))
        seen = after
    return statistics.median(took), statistics.median(moved[1:])


def test_cost_of_a_decision():
    """Prints milliseconds, the multiple of credit's, growth from 100 to 1,000 vCPUs, and moves."""
    credit = {size: decision_s("credit", size)[0] for size in SIZES}
    head = "".join(f"{size:>9} ms {'':>7}" for size in SIZES)
    print(f"\n{'policy':<18}{head} growth  moves at 100")
    for name in policies():
        found = {size: decision_s(name, size) for size in SIZES}
        cells = "".join(
            f"{found[size][0] * 1e3:>12.3f} {found[size][0] / credit[size]:>5.1f} x"
            for size in SIZES
        )
        growth = found[SIZES[-1]][0] / found[SIZES[-2]][0]
        print(f"{name:<18}{cells} {growth:>6.1f}  {found[SIZES[-2]][1]:g}")
        assert all(seconds > 0.0 for seconds, _ in found.values())
