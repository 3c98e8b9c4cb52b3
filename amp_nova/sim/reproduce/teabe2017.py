"""teabe2017: the same work in the same time, on any core type.

The quantity is the completion time on a fast core over that on a slow one. The paper's box plots
show equal times for its CPU-bound programs under both solutions. The last figures are not in the
paper: the effect of both solutions on work that gains less from a fast core than the hardware's
coefficient.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from amp_nova.agent.loop import Settings
from amp_nova.control.context import Terms
from amp_nova.plugins import load_policy
from amp_nova.sim.reproduce.figure import Figure, guest, host, scenario, steady
from amp_nova.sim.run import run

PAPER = "teabe2017"
COEFFICIENT = 2.375
REFERENCE_IPS = 2.0e9
REFCORES: Mapping[str, str] = {"amp:pref_core": "0.5"}
IPS: Mapping[str, str] = {"amp:ips": "50M"}
WORK_REF_S = {"amp:pref_core": 60.0, "amp:ips": 2.0}


def _ratio(
    speedup: float, specs: Mapping[str, str], *, enforce: bool = True, controller: str = "default"
) -> float:
    """Completion time on a fast core over that on a slow one."""
    (kind,) = specs
    workload = steady(speedup, WORK_REF_S[kind])
    guests = (
        guest(where, workload, specs={**specs, "amp:core_type": where}, start_on=where)
        for where in ("fast", "slow")
    )
    topology = host(1, 1, COEFFICIENT, REFERENCE_IPS)
    made = scenario(topology, guests, 3600.0, reference_ips=REFERENCE_IPS)
    made = dataclasses.replace(made, ips_controller=controller)
    vms = run(made, load_policy("none"), Settings(Terms(enforce=enforce))).vms
    return vms["slow"].progress_refcores / vms["fast"].progress_refcores


def figures() -> Iterator[Figure]:
    """Each figure as soon as it is computed."""
    unlimited = _ratio(COEFFICIENT, REFCORES, enforce=False)
    what = "time on a fast core over a slow one"
    cpu_bound = f"{what}, CPU-bound"
    published = f"{1 / COEFFICIENT:.3f}"
    yield Figure(PAPER, "figure 2", f"{cpu_bound}, no limit", published, unlimited)
    for name, specs, controller in (
        ("solution 1 (reference cores)", REFCORES, "default"),
        ("solution 2 (Ips), default controller", IPS, "default"),
        ("solution 2 (Ips), printed rule", IPS, "printed"),
    ):
        ours = _ratio(COEFFICIENT, specs, controller=controller)
        yield Figure(PAPER, "figure 2", f"{cpu_bound}, {name}", "1", ours)
    for number, specs in enumerate((REFCORES, IPS), 1):
        quantity = f"{what}, speedup 1.1, solution {number}"
        yield Figure(PAPER, "not in the paper", quantity, "-", _ratio(1.1, specs))
