# SPDX-License-Identifier: Apache-2.0
"""Random mixes of guests under the main policies: never worse than doing nothing.

A few mixes of each kind by default. ``AMP_NOVA_MIXES=100 python -m pytest -s
tests/benchmarks/test_mixes.py`` prints the table of ``doc/source/user/policies.rst``.
"""

import os
import random
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from statistics import geometric_mean, median

import pytest

from amp_nova.flavor.extra_specs import parse
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.plugins import load_policy
from amp_nova_lab.run import run
from amp_nova_lab.scenarios.hosts import Machine
from amp_nova_lab.scenarios.scenario import Guest, Scenario
from amp_nova_lab.scenarios.workload import Phase, Workload

MIXES = int(os.environ.get("AMP_NOVA_MIXES", "4"))
DURATION_S = 120.0 if MIXES > 4 else 60.0
KINDS = ("steady", "spare", "crowded", "three types", "parallel", "sleepers")
POLICIES = ("acfs", "eqp", "amp-fair", "hsp", "none")
FIRST = 1000.0
"""Weight of everybody's part beside work."""


def topology(chance, kinds):
    """A host of two or three core types, slowest first, each with a cache of its own."""
    steps = [chance.uniform(1.3, 2.0) for _ in range(kinds - 1)]
    if kinds == 2:
        steps = [chance.uniform(1.3, 3.0)]
    types, pcpus, coefficient = [], [], 1.0
    for at in range(kinds):
        types.append(CoreType(f"type{at}", coefficient))
        count = chance.randint(1, 4) if at or kinds > 2 else chance.randint(2, 10)
        pcpus += [
            PCpu(len(pcpus) + i, f"type{at}", (len(pcpus) + i,), llc=at) for i in range(count)
        ]
        coefficient *= steps[at] if at < len(steps) else 1.0
    return Topology(tuple(types), tuple(pcpus), "type0", "mix")


def speeds(chance, types):
    """The speed of a program on each core type: any that does not fall with the coefficient."""
    most = [1.0 + chance.uniform(0.1, 1.0) * (types[-1].coefficient - 1.0)]
    middle = [chance.uniform(1.0, min(t.coefficient, most[0])) for t in types[1:-1]]
    return (1.0, *middle, *most)


def mix(kind, seed):
    """A host and its guests of 1 to 4 vCPUs, as many vCPUs as pCPUs.

    There are more if the kind is crowded or sleepers, and fewer if it is spare. The vCPUs of a
    sleeper sleep in step. Flavors do not say which guests run parallel programs. Every other host
    has a Linux that knows which pCPUs are fast.
    """
    chance = random.Random(f"{kind} {seed}")
    made = topology(chance, 3 if kind == "three types" else 2)
    wanted = len(made.pcpus) * (chance.uniform(1.2, 2.0) if kind in ("crowded", "sleepers") else 1)
    wanted *= chance.uniform(0.4, 0.9) if kind == "spare" else 1.0
    guests, left = [], round(wanted)
    while left > 0:
        vcpus = min(left, chance.choice((1, 1, 2, 4)))
        ratio = chance.choice((0.2, 0.5, 0.8, 1.0)) if kind == "sleepers" else 1.0
        meets = kind == "parallel" and vcpus > 1
        phase = Phase(speeds(chance, made.core_types), ratio)
        done = Workload((phase,), barrier_ref_s=0.05 if meets else None)
        guests.append(Guest(f"vm{len(guests)}", parse({}, vcpus), done, {}))
        left -= vcpus
    machine = Machine(kernel=("blind", "prefer_fast")[seed % 2])
    return Scenario(kind, DURATION_S, made, tuple(guests), seed=seed, machine=machine)


def maximum(rows, bounds, objective):
    """The most that ``objective`` can be if ``rows`` times x is at most ``bounds``, and x >= 0.

    The simplex method, with Bland's rule; no bound is negative.
    """
    width = len(objective) + len(rows)
    table = [
        [*row, *(float(i == at) for i in range(len(rows))), bound]
        for at, (row, bound) in enumerate(zip(rows, bounds, strict=True))
    ]
    last, basis = [-c for c in objective] + [0.0] * (len(rows) + 1), [*range(len(objective), width)]
    while (enters := next((j for j in range(width) if last[j] < -1e-9), None)) is not None:
        able = [i for i, row in enumerate(table) if row[enters] > 1e-9]
        leaves = min(able, key=lambda i: (table[i][-1] / table[i][enters], basis[i]))
        pivot = table[leaves] = [v / table[leaves][enters] for v in table[leaves]]
        basis[leaves] = enters
        for row in (*(r for i, r in enumerate(table) if i != leaves), last):
            if factor := row[enters]:
                row[:] = [a - factor * b for a, b in zip(row, pivot, strict=True)]
    return last[-1]


def shares(made):
    """The limits on the time of one vCPU by guest and core type, as rows and bounds of a program.

    And the speed of each guest in that time: threads that meet run at the pace of the slowest.
    """
    counts = [len(made.topology.pcpus_of(t.name)) for t in made.topology.core_types]
    types, paces = len(counts), []
    sizes = [len(g.booking.vcpus) for g in made.guests]
    rows = [[n * (at == t) for n in sizes for t in range(types)] for at in range(types)]
    bounds = list(counts)
    for i, (guest, vcpus) in enumerate(zip(made.guests, sizes, strict=True)):
        phase = guest.workload.phases[0]
        own = [[j == i * types + at for j in range(types * len(sizes))] for at in range(types)]
        rows.append([any(column) for column in zip(*own, strict=True)])
        bounds.append(phase.utilization_ratio)
        for at, count in enumerate(counts):  # its vCPUs run in step
            rows.append(own[at])
            bounds.append(phase.utilization_ratio * min(1.0, count / vcpus))
        pace = list(phase.speeds)
        for at in range(1, types):
            if guest.workload.parallel and sum(counts[at:]) < vcpus:
                pace[at:] = [pace[at - 1]] * (types - at)
        paces.append([[s * float(o) for o in of] for s, of in zip(pace, own, strict=True)])
    return rows, bounds, [[sum(column) for column in zip(*p, strict=True)] for p in paces]


def ideal(made, alone):
    """The most of its speed alone that every guest can have, and the most work while all have it.

    Upper bounds: linear programs over time shares, in which pCPUs are divided as finely as may be
    and sleepers get out of each other's way. ``alone``: the speed of each guest.
    """
    rows, bounds, speeds = shares(made)
    others = [0.0] * len(alone)
    fair = [[*row, 0.0] for row in rows]
    fair += [[*(-s for s in own), a] for own, a in zip(speeds, alone, strict=True)]
    part = maximum(fair, bounds + others, [0.0] * len(rows[0]) + [1.0])
    rows = [row + others for row in rows]
    for i, (own, a) in enumerate(zip(speeds, alone, strict=True)):  # what counts as its part
        counted = [float(j == i) for j in range(len(alone))]
        rows += [[*(-s / a for s in own), *counted], [*(0.0 for _ in own), *counted]]
        bounds = [*bounds, 0.0, part]
    sizes = [len(g.booking.vcpus) for g in made.guests]
    work = [sum(n * s for n, s in zip(sizes, at, strict=True)) for at in zip(*speeds, strict=True)]
    most = maximum(rows, bounds, work + [FIRST] * len(alone))
    return part, most - FIRST * part * len(alone)


def measured(kind, seed):
    """What each policy achieved on one mix: see ``COLUMNS``."""
    made = mix(kind, seed)
    results = {name: run(made, load_policy(name)) for name in POLICIES}
    sizes = {g.name: len(g.booking.vcpus) for g in made.guests}
    work = {
        n: sum(v.progress_refcores * sizes[k] for k, v in r.vms.items()) for n, r in results.items()
    }
    alone = [v.slowdown * v.progress_refcores for v in results["none"].vms.values()]
    part, fair_work = ideal(made, alone)
    fairest = min(r.unfairness for r in results.values())
    return {
        n: (
            work[n] / work["none"],
            work[n] / min(work["none"], fair_work),
            fairest / r.unfairness,
            1.0 / max(v.slowdown for v in r.vms.values()) / part,
        )
        for n, r in results.items()
    }


COLUMNS = {
    "work over none's": 0.99,
    "or over the ideal's, if less": 0.99,
    "least unfairness over it": 0.952,
    "worst-off over the ideal": 0.95,
}
"""And what is good enough."""


@pytest.mark.timeout(7200)
def test_policies_on_random_mixes(within, capsys):
    """Prints the median, the least and the number that is good enough; checks ``acfs``."""
    found = {}
    for kind in KINDS:
        with ProcessPoolExecutor() as pool:
            found[kind] = list(pool.map(measured, repeat(kind), range(MIXES)))
        with capsys.disabled():
            print(f"\n{kind}: {MIXES} mixes\n{'':9}" + "".join(f"{c:>30}" for c in COLUMNS))
            for name in POLICIES:
                figures = zip(*(of[name] for of in found[kind]), strict=True)
                cells = [
                    f"{median(f):16.3f} {min(f):6.3f} {sum(v >= good for v in f):6d}"
                    for f, good in zip(figures, COLUMNS.values(), strict=True)
                ]
                print(f"{name:9}" + "".join(cells))
    every = [of["acfs"] for kind in KINDS for of in found[kind]]
    within("none_over_acfs", 1.0 / geometric_mean(of[1] for of in every))
    within("acfs_unfairness", 1.0 / geometric_mean(of[2] for of in every))
    awake = [of["acfs"][3] for kind in KINDS[:4] for of in found[kind]]
    within("ideal_over_worst_off", 1.0 / geometric_mean(awake))
