"""kwon2011, section 4: its programs and the twelve mixes of table 1, run by a policy.

The paper prints no speedups of programs (figure 2 is an image). Those of gemsfdtd, soplex,
libquantum, freqmine, swaptions and pmake are chosen so that one printed number each comes out; the
others are ours. Guests with one vCPU have endless work. Those with several vCPUs run until their
work ends, which is at the same time under amp-fair: section 4.2 says so of one mix, and that a
guest that ends early leaves its fast cores to the others.
"""

import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from amp_nova.sim.report import Result
from amp_nova.sim.reproduce.experiment import Machine, guest, percent, run, scenario, speeds, steady
from amp_nova.sim.scenarios.workload import Workload

CLOCKS = 1.9 / 0.8
SECONDS = 300.0
BY_SCORE = ("amp-vm", "amp-vcpu", "amp-r-fair")
"""Policies that follow the paper as printed."""
H, M, L = "H", "M", "L"
PROGRAMS: Mapping[str, tuple[str, float]] = {
    "hmmer": (H, 2.2),
    "perlbench": (H, 2.1),
    "gemsfdtd": (M, 1.239),
    "soplex": (M, 1.239),
    "libquantum": (M, 1.484),
    "mcf": (L, 1.1),
    "sysbench": (L, 1.1),
    "freqmine": (H, 1.81),
    "swaptions": (H, 1.85),
    "x264": (M, 1.3),
    "pmake": (M, 1.333),
    "canneal": (L, 1.1),
    "apache": (L, 1.15),
}
"""Class of table 1, and speedup."""
IPC: Mapping[str, Mapping[str, float]] = {
    "libquantum": {"slow": 0.33, "fast": 0.33},
    "swaptions": {"slow": 1.6, "fast": 1.6},
}
"""IPC by core type; that of all other programs follows from the speedup. libquantum ranks below
programs that gain less, which section 2.1 calls the weakness of IPC; swaptions ranks above
freqmine, as section 4.2 says."""
# fmt: off
SINGLE: Mapping[str, Mapping[str, int]] = {
    "4H-4M-4L": {"hmmer": 2, "perlbench": 2, "gemsfdtd": 2, "soplex": 2, "mcf": 2, "sysbench": 2},
    "2H-6M-4L": {"hmmer": 1, "perlbench": 1, "gemsfdtd": 2, "soplex": 2, "libquantum": 2,
                 "mcf": 2, "sysbench": 2},
    "6H-2M-4L": {"hmmer": 3, "perlbench": 3, "soplex": 2, "mcf": 2, "sysbench": 2},
    "8M-4L": {"gemsfdtd": 2, "libquantum": 2, "soplex": 4, "mcf": 2, "sysbench": 2},
}
MULTI: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "1H-1M-1L": (4, {"freqmine": 1, "pmake": 1, "canneal": 1}),
    "2H-1M": (4, {"freqmine": 1, "swaptions": 1, "x264": 1}),
    "1M-2L": (4, {"pmake": 1, "apache": 1, "canneal": 1}),
    "1H-1L": (6, {"freqmine": 1, "canneal": 1}),
    "1H-3M-2L": (4, {"freqmine": 1, "x264": 2, "pmake": 1, "canneal": 1, "apache": 1}),
    "2H-2M-2L": (4, {"freqmine": 1, "swaptions": 1, "x264": 1, "pmake": 1, "canneal": 1,
                     "apache": 1}),
    "2H-1M-1L": (6, {"freqmine": 1, "swaptions": 1, "x264": 1, "canneal": 1}),
    "4H-2L": (4, {"freqmine": 2, "swaptions": 2, "canneal": 1, "apache": 1}),
}
# fmt: on
"""vCPUs of each guest, and guests of each program; the last four have 24 vCPUs."""
OVERCOMMITTED = ("1H-3M-2L", "2H-2M-2L", "2H-1M-1L", "4H-2L")
TABLE_2: Mapping[str, tuple[float, ...]] = {
    "4H-4M-4L": (7.38,),
    "2H-6M-4L": (10.0,),
    "6H-2M-4L": (7.75,),
    "8M-4L": (13.89,),
    "1H-1M-1L": (0.0, 0.0),
    "2H-1M": (7.84, 6.43),
    "1M-2L": (0.27, 0.0),
    "1H-1L": (0.06, 1.21),
    "1H-3M-2L": (1.23, 4.19),
    "2H-2M-2L": (0.0, 0.0),
    "4H-2L": (0.0, 0.0),
    "2H-1M-1L": (2.85, 2.19),
}
"""Greatest slowdown under amp-vm and amp-vcpu, in percent; table 2 calls 1H-1L 1H-1M."""
TABLE_3: Mapping[str, tuple[float, ...]] = {
    "4H-4M-4L": (6.12, 4.82, 4.16, 2.81),
    "8M-4L": (11.93, 10.4, 9.36, 6.19),
    "2H-1M": (6.82, 6.79, 4.97, 3.2),
    "2H-1M-1L": (2.03, 2.59, 1.41, 0.92),
}
RATIOS = (0.2, 0.4, 0.6, 0.8)


def speeds_of(mix: str, policy: str, fast: int = 4, ratio: float = 0.0) -> dict[str, float]:
    """Speed of every guest; a guest with several vCPUs runs until its work ends."""
    return speeds((on_and_on if mix in SINGLE else to_the_end)(mix, policy, fast, ratio))


@cache
def to_the_end(mix: str, policy: str, fast: int = 4, ratio: float = 0.0) -> Result:
    """Every guest runs until its work ends, which is at the same time for all under amp-fair."""
    fair = speeds(on_and_on(mix, "amp-fair"))
    work = {name: speed * SECONDS for name, speed in fair.items()}
    return _simulate(mix, policy, (fast, ratio), work)


@cache
def on_and_on(mix: str, policy: str, fast: int = 4, ratio: float = 0.0) -> Result:
    """Every guest has endless work."""
    return _simulate(mix, policy, (fast, ratio), {})


def _simulate(mix: str, policy: str, at: tuple[int, float], work: Mapping[str, float]) -> Result:
    """``at``: fast cores and R; ``work`` by guest, endless for those that are not in it."""
    fast, ratio = at
    vcpus, guests = MULTI[mix] if mix in MULTI else (1, SINGLE[mix])
    made = [
        guest(name, _workload(program, work.get(name)), vcpus)
        for program, count in guests.items()
        for name in (f"{program}-{i}" for i in range(count))
    ]
    params: dict[str, object] = {"printed": "2.1"} if policy in BY_SCORE else {}
    if policy == "amp-r-fair":
        params["fair_ratio"] = ratio
    machine = Machine(fast, 12 - fast, CLOCKS, caches=2)
    return run(scenario(machine, made, SECONDS * (2 if work else 1)), policy, **params)


def _workload(program: str, work_ref_s: float | None) -> Workload:
    return replace(steady(PROGRAMS[program][1], work_ref_s), ipc=IPC.get(program, {}))


def gains(mix: str, policy: str, fast: int = 4, ratio: float = 0.0) -> dict[str, float]:
    """Change of every guest's speed against amp-fair on four fast cores, in percent."""
    fair, found = speeds_of(mix, "amp-fair"), speeds_of(mix, policy, fast, ratio)
    return {name: percent(found[name] / fair[name]) for name in fair}


def mean(gains: Mapping[str, float], of: str = H + M + L) -> float:
    """Mean over guests whose program is of these classes."""
    return statistics.mean(g for n, g in gains.items() if PROGRAMS[n.rpartition("-")[0]][0] in of)


def greatest_loss(mix: str, policy: str, ratio: float = 0.0) -> float:
    """Greatest slowdown against amp-fair, in percent."""
    return max(0.0, -min(gains(mix, policy, ratio=ratio).values()))
