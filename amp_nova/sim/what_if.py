"""What a scenario would be with another policy, machine or booking, and how sure that is.

The error of a predicted number combines two independent errors: the relative difference between the
recording and its simulation without changes; and the effect of the standard errors of the speedups,
with all of them too low or all too high. A speedup that was never measured counts as anything from
no gain at all to what the coefficients say.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from amp_nova.policies.api import Policy
from amp_nova.sim import run as simulation
from amp_nova.sim.report import Result
from amp_nova.sim.scenarios import edit
from amp_nova.sim.scenarios.document import Value
from amp_nova.sim.scenarios.edit import Shift, Speeds
from amp_nova.sim.scenarios.recorded import MEASURES, RecordedGain, RecordedVm
from amp_nova.sim.scenarios.scenario import Scenario

TOTALS = ("throughput", "unfairness")
Numbers = Mapping[str, float | None]
Recorded = Mapping[str, RecordedVm]


@dataclass(frozen=True, slots=True)
class PredictionErrors:
    """Errors of the numbers of a result, by name; ``None``: not known."""

    totals: Numbers
    vms: Mapping[str, Numbers]


def totals(recorded: Recorded) -> Numbers:
    """The recorded numbers of the whole host; ``None`` if that of a VM is unknown."""
    progress = [vm.measures["progress_refcores"] for vm in recorded.values()]
    slowdowns = [vm.measures["slowdown"] for vm in recorded.values()]
    known = [p for p in progress if p is not None]
    slowed = [s for s in slowdowns if s]
    return {
        "throughput": sum(known) / len(known) if known and len(known) == len(progress) else None,
        "unfairness": max(slowed) / min(slowed)
        if slowed and len(slowed) == len(slowdowns)
        else None,
    }


def model_error(as_is: Result, recorded: Recorded) -> PredictionErrors:
    """Relative difference between a recording and its simulation without changes."""
    return PredictionErrors(
        {t: _relative(getattr(as_is, t), found) for t, found in totals(recorded).items()},
        {
            name: {
                m: _relative(getattr(vm, m), recorded[name].measures[m])
                if name in recorded
                else None
                for m in MEASURES
            }
            for name, vm in as_is.vms.items()
        },
    )


def _relative(simulated: float | None, recorded: float | None) -> float | None:
    if simulated is None or not recorded:
        return None
    return abs(simulated - recorded) / recorded


def shifted(whole: Value, recorded: Recorded, sign: float) -> Value:
    """The scenario with all speedups lower (``sign=-1``) or higher (1) by their errors."""
    return edit.with_speedups(
        whole, {name: _shift(vm.gains, sign) for name, vm in recorded.items() if vm.gains}
    )


def _shift(gains: tuple[RecordedGain, ...], sign: float) -> Shift:
    def shift(index: int, speeds: Speeds, usual: Speeds) -> Speeds:
        error = gains[min(index, len(gains) - 1)].error
        top = max(speeds.values(), default=1.0)
        if error is None:
            return {n: 1.0 if sign < 0 else max(s, usual[n]) for n, s in speeds.items()}
        if top == 1.0:
            return {name: s + sign * error for name, s in speeds.items()}
        factor = (top - 1.0 + sign * error) / (top - 1.0)
        return {name: 1.0 + (s - 1.0) * factor for name, s in speeds.items()}

    return shift


def predict(
    read: Callable[[Value], Scenario], whole: Value, policy: Policy, recorded: Recorded | None
) -> tuple[Result, list[Result]]:
    """The result of a scenario, and those with all speedups lower and all higher."""
    result = simulation.run(read(whole), policy)
    if recorded is None:
        return result, []
    others = [read(shifted(whole, recorded, sign)) for sign in (-1.0, 1.0)]
    return result, [simulation.run(other, policy) for other in others]


def error_of(
    predicted: tuple[Result, list[Result]], model: PredictionErrors | None
) -> PredictionErrors:
    """The errors of a prediction."""
    result, others = predicted
    if model is None:
        nothing = dict.fromkeys(MEASURES)
        return PredictionErrors(dict.fromkeys(TOTALS), dict.fromkeys(result.vms, nothing))
    return PredictionErrors(
        {
            t: _combined(getattr(result, t), [getattr(o, t) for o in others], model.totals[t])
            for t in TOTALS
        },
        {
            name: {
                m: _combined(
                    getattr(vm, m), [getattr(o.vms[name], m) for o in others], model.vms[name][m]
                )
                for m in MEASURES
            }
            for name, vm in result.vms.items()
        },
    )


def _combined(
    value: float | None, others: list[float | None], relative: float | None
) -> float | None:
    """The standard error of one number; ``None`` if the error of the model is unknown."""
    if value is None or relative is None:
        return None
    spread = max((abs(o - value) for o in others if o is not None), default=0.0)
    return math.hypot(value * relative, spread)
