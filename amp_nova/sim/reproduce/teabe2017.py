"""teabe2017: the same work in the same time, whatever the core type.

Completion time on a fast core over that on a slow one. The paper's box plots show one time for its
CPU-bound programs under both solutions. The last lines are beyond it: what its first solution does
to work that gains less from a fast core than the hardware's coefficient.
"""

from collections.abc import Iterator, Mapping

from amp_nova.plugins import load_policy
from amp_nova.sim.reproduce.figure import Figure, guest, host, scenario
from amp_nova.sim.run import Pace, run

PAPER = "teabe2017"
COEFFICIENT = 2.375
REFERENCE_IPS = 2.0e9
REFCORES: Mapping[str, str] = {"amp:pref_core": "0.5"}
IPS: Mapping[str, str] = {"amp:ips": "50M"}


def _ratio(speedup: float, specs: Mapping[str, str], work_ref_s: float, pace: Pace) -> float:
    """Completion time on a fast core over that on a slow one."""
    topology = host(1, 1, COEFFICIENT, REFERENCE_IPS)
    guests = (
        guest(
            where,
            speedup,
            specs={**specs, "amp:core_type": where},
            work_ref_s=work_ref_s,
            start_on=where,
        )
        for where in ("fast", "slow")
    )
    made = scenario(topology, guests, 3600.0, reference_ips=REFERENCE_IPS)
    vms = run(made, load_policy("none"), pace).vms
    return vms["slow"].progress_refcores / vms["fast"].progress_refcores


def figures() -> Iterator[Figure]:
    """Every one, as it is done."""
    kinds = (
        ("no limit", REFCORES, 60.0, Pace(enforce=False), f"{1 / COEFFICIENT:.3f}"),
        ("solution 1 (reference cores)", REFCORES, 60.0, Pace(), "1"),
        ("solution 2 (Ips), default controller", IPS, 2.0, Pace(), "1"),
        ("solution 2 (Ips), printed rule", IPS, 2.0, Pace(ips_controller="printed"), "1"),
    )
    for name, specs, work_ref_s, pace, published in kinds:
        what = f"time on a fast core over a slow one, CPU-bound, {name}"
        ours = _ratio(COEFFICIENT, specs, work_ref_s, pace)
        yield Figure(PAPER, "figure 2", what, published, ours)
    for name, specs, work_ref_s in (("1", REFCORES, 60.0), ("2", IPS, 2.0)):
        what = f"time on a fast core over a slow one, speedup 1.1, solution {name}"
        ours = _ratio(1.1, specs, work_ref_s, Pace())
        yield Figure(PAPER, "not in the paper", what, "-", ours)
