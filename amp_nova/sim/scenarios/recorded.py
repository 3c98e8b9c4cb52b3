"""What was measured while a scenario was recorded: its key ``recorded``."""

from collections.abc import Mapping
from dataclasses import dataclass

from amp_nova.sim.scenarios.document import Value

MEASURES = (
    "progress_refcores",
    "fast_share",
    "slowdown",
    "delivered_ratio",
    "delivered_ratio_min",
    "delivered_ratio_max",
)
"""Numbers of the result that are recorded of every VM."""


@dataclass(frozen=True, slots=True)
class RecordedGain:
    """The speedup of a vCPU and its standard error; ``None``: never measured."""

    ratio: float | None
    error: float | None


@dataclass(frozen=True, slots=True)
class RecordedVm:
    """One VM: ``MEASURES`` by name, ``None`` if unknown, and the speedups of its vCPUs."""

    measures: Mapping[str, float | None]
    gains: tuple[RecordedGain, ...]


def read(whole: Value) -> Mapping[str, RecordedVm] | None:
    """The VMs of a recording by name; ``None`` if the scenario is not a recording.

    Raises ``ScenarioInvalid`` for a value that ``amp-nova record`` does not write.
    """
    value = next((v for k, v in whole.entries().items() if k == "recorded"), None)
    if value is None or value.is_null:
        return None
    vms = value.fields(("lasted_s", "other_cores", "vms"), ("vms",))["vms"].entries(
        "a mapping of VMs"
    )
    return {name: _vm(vm) for name, vm in vms.items()}


def _vm(value: Value) -> RecordedVm:
    keys = value.fields(("instance", *MEASURES, "vcpus"))
    gains = keys["vcpus"].items("a list of vCPUs") if "vcpus" in keys else []
    measures = {m: keys[m].number(0) if m in keys else None for m in MEASURES}
    return RecordedVm(measures, tuple(_gain(gain) for gain in gains))


def _gain(value: Value) -> RecordedGain:
    keys = value.fields(("cpu_s", "speedup", "speedup_error", "speedup_source"))
    ratio, error = keys.get("speedup"), keys.get("speedup_error")
    return RecordedGain(
        ratio.number(0, above=True) if ratio else None, error.number(0) if error else None
    )
