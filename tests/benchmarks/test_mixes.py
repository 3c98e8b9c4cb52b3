# SPDX-License-Identifier: Apache-2.0
"""Random mixes of guests under every policy: how fair, how fast, and how many moves.

One mix of each kind by default. ``AMP_NOVA_MIXES=20 pytest tests/benchmarks/test_mixes.py`` prints
the table of ``doc/source/user/policies.rst``.
"""

import math
import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from statistics import geometric_mean

import pytest

from amp_nova.flavor.extra_specs import parse
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.plugins import load_policy, policies
from amp_nova_lab.run import run
from amp_nova_lab.scenarios.hosts import Machine
from amp_nova_lab.scenarios.scenario import Guest, Scenario
from amp_nova_lab.scenarios.workload import Phase, Workload

MIXES = int(os.environ.get("AMP_NOVA_MIXES", "1"))
DURATION_S = 300.0 if MIXES > 1 else 60.0
HOSTS = {"1 + 3": (1, 3), "4 + 4": (4, 4), "2 + 10": (2, 10), "2 + 4 + 2": (2, 4, 2)}
"""How many pCPUs of each core type, fastest first."""
SPEEDS = {2: (2.2, 1.0), 3: (2.6, 1.6, 1.0)}
KINDS = ("steady", "crowded", "sleeping", "phases", "parallel", "spare")
LINUX = "none, prefer_fast"
"""What operators have without us: Linux's own preference for fast pCPUs. Gains are over it."""


def topology(counts):
    """A host; core types slowest first, each with a cache of its own."""
    speeds = SPEEDS[len(counts)]
    names = [f"type{i}" for i in range(len(counts))]
    pcpus = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    types = [CoreType(n, s) for n, s in zip(names, speeds, strict=True)]
    return Topology(
        tuple(reversed(types)),
        tuple(PCpu(i, n, (i,), llc=names.index(n)) for i, n in enumerate(pcpus)),
        names[-1],
        "mix",
    )


def phase(chance, speeds, utilization=1.0, for_s=math.inf):
    """What a program gains from a core type: a random part of what the type offers."""
    part = chance.uniform(0.1, 1.0)
    return Phase(tuple(1.0 + part * (s - 1.0) for s in reversed(speeds)), utilization, for_s)


def workload(chance, kind, speeds, vcpus):
    """What a guest does."""
    if kind == "phases":
        lengths = [chance.uniform(5.0, 60.0) for _ in range(2)]
        return Workload(tuple(phase(chance, speeds, for_s=s).by_work() for s in lengths))
    utilization = chance.choice((0.2, 0.5, 0.8, 1.0)) if kind == "sleeping" else 1.0
    together = kind == "parallel" and vcpus > 1
    return Workload((phase(chance, speeds, utilization),), barrier_ref_s=0.05 if together else None)


def mix(kind, counts, seed):
    """A host and its guests of 1 to 4 vCPUs, as many as pCPUs.

    There are more if the kind is crowded or sleeping, and fewer if it is spare. Flavors say which
    guests run parallel programs.
    """
    chance = random.Random(f"{kind} {counts} {seed}")
    pcpus = sum(counts)
    wanted = pcpus * (chance.uniform(1.2, 2.0) if kind in ("crowded", "sleeping") else 1.0)
    wanted *= chance.uniform(0.4, 0.9) if kind == "spare" else 1.0
    guests, left = [], round(wanted)
    while left:
        vcpus = min(left, chance.choice((1, 1, 2, 4)))
        done = workload(chance, kind, SPEEDS[len(counts)], vcpus)
        specs = {} if done.barrier_ref_s is None else {"amp:parallel": "true"}
        guests.append(Guest(f"vm{len(guests)}", parse(specs, vcpus), done, specs))
        left -= vcpus
    return Scenario(f"{kind} {counts}", DURATION_S, topology(counts), tuple(guests), seed=seed)


def measured(kind, counts, seed):
    """Unfairness, work a second of all vCPUs, and moves of each policy on one mix."""
    made = mix(kind, counts, seed)
    results = {name: run(made, load_policy(name)) for name in policies()}
    prefers = replace(made, machine=Machine(kernel="prefer_fast"))
    results |= {f"{n}, prefer_fast": run(prefers, load_policy(n)) for n in ("none", "acfs")}
    sizes = {g.name: len(g.booking.vcpus) for g in made.guests}
    work = {
        n: sum(v.progress_refcores * sizes[k] for k, v in r.vms.items()) for n, r in results.items()
    }
    return {n: (r.unfairness, work[n], r.migrations) for n, r in results.items()}


@pytest.mark.timeout(7200)
def test_policies_on_random_mixes(within, capsys):
    """Prints each kind; checks the policy that is recommended."""
    hosts, seeds = list(HOSTS.values())[:MIXES], range(max(1, MIXES // len(HOSTS)))
    less_fair, less_work = [], []
    for kind in KINDS:
        jobs = list(product([kind], hosts, seeds))
        with ProcessPoolExecutor() as pool:
            found = list(pool.map(measured, *zip(*jobs, strict=True)))
        fairest = [min(of[n][0] for n in of) for of in found]
        with capsys.disabled():
            print(f"\n{kind}: {len(found)} mixes")
            print("policy              unfairness  of fairest  <5 %  throughput  worst  moves")
            for name in sorted(found[0], key=lambda n: geometric_mean(of[n][0] for of in found)):
                ratio = [of[name][0] / best for of, best in zip(found, fairest, strict=True)]
                gain = [of[name][1] / of[LINUX][1] for of in found]
                print(
                    f"{name:20}{geometric_mean(of[name][0] for of in found):10.3f}"
                    f"{geometric_mean(ratio):12.3f}{sum(r <= 1.05 for r in ratio):6d}"
                    f"{geometric_mean(gain):12.3f}{min(gain):7.3f}"
                    f"{sum(of[name][2] for of in found) / len(found):7.0f}"
                )
        less_fair += [of["acfs"][0] / best for of, best in zip(found, fairest, strict=True)]
        less_work += [of[LINUX][1] / of["acfs, prefer_fast"][1] for of in found]
    within("acfs_unfairness", geometric_mean(less_fair))
    within("none_over_acfs", geometric_mean(less_work))
