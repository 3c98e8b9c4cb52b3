"""What a scenario would be with another policy, machine or booking, and how sure that is.

The error of a predicted number combines two independent errors: the relative difference between the
recording and its simulation without changes; and the effect of the standard errors of the speedups,
with all of them too low or all too high. A speedup that was never measured counts as anything from
no gain at all to what the coefficients say.
"""

import math
from collections.abc import Callable, Mapping

from amp_nova.policies.api import Policy
from amp_nova.sim import run as simulation
from amp_nova.sim.report import Result
from amp_nova.sim.scenarios import edit
from amp_nova.sim.scenarios.document import Value
from amp_nova.sim.scenarios.edit import Shift, Speeds
from amp_nova.sim.scenarios.recorded import MEASURES, RecordedGain, RecordedVm
from amp_nova.sim.scenarios.scenario import Scenario

TOTALS = ("throughput", "unfairness")
Numbers = Mapping[tuple[str, str], float | None]
"""Numbers of a result or their errors, by VM (empty: the host) and name; ``None``: not known."""
Recorded = Mapping[str, RecordedVm]


def totals(recorded: Recorded) -> Mapping[str, float | None]:
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


def _numbers(result: Result) -> Numbers:
    """The numbers of a result that a recording has as well."""
    vms = {(name, m): getattr(vm, m) for name, vm in result.vms.items() for m in MEASURES}
    return {**{("", t): getattr(result, t) for t in TOTALS}, **vms}


def model_error(as_is: Result, recorded: Recorded) -> Numbers:
    """Relative difference between a recording and its simulation without changes."""
    known: Numbers = {
        **{("", name): total for name, total in totals(recorded).items()},
        **{(name, m): vm.measures[m] for name, vm in recorded.items() for m in MEASURES},
    }
    return {key: _relative(found, known.get(key)) for key, found in _numbers(as_is).items()}


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


def error_of(predicted: tuple[Result, list[Result]], model: Numbers | None) -> Numbers:
    """The errors of a prediction; ``model``: the error of the simulation, if known."""
    result, others = _numbers(predicted[0]), [_numbers(other) for other in predicted[1]]
    return {
        key: _combined(found, [other[key] for other in others], model[key] if model else None)
        for key, found in result.items()
    }


def _combined(
    value: float | None, others: list[float | None], relative: float | None
) -> float | None:
    """The standard error of one number; ``None`` if the error of the model is unknown."""
    if value is None or relative is None:
        return None
    spread = max((abs(o - value) for o in others if o is not None), default=0.0)
    return math.hypot(value * relative, spread)
