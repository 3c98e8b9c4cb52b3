"""What ``amp-nova calibrate`` prints of a calibration."""

import dataclasses

from amp_nova.cmd.command import Answer, short
from amp_nova.hardware.calibration import Calibration, TypeResult
from amp_nova.model import cpulist


def table(found: Calibration, end: str) -> Answer:
    """A row for every core type, with a column for every kernel; ``end``: the last line below."""
    kernels = [k.name for k in found.kernels]
    return Answer(
        ["Core Type", "pCPUs", "Coefficient", "Interval", *kernels, "Nominal Ips", "SMT Busy"],
        [_row(result) for result in found.core_types],
        dataclasses.asdict(found),
        below=[*_notes(found), end],
    )


def _notes(found: Calibration) -> list[str]:
    """The lines below the table."""
    confidence = min(r.coefficient.confidence_ratio for r in found.core_types)
    host = f" of host '{found.reference_host}'" if found.reference_host else ""
    bound = ", ".join(k.name for k in found.kernels if k.cpu_bound)
    made = found.provenance
    lines = [
        "",
        f"reference core: '{found.reference}'{host}; coefficient: geometric mean of {bound}",
        f"interval: contains the true coefficient with {confidence:.0%} confidence",
        f"measured: {made.repeat} rounds of {made.run_s} s with Python {made.python_version}",
    ]
    if any(result.smt_busy_factor for result in found.core_types):
        lines.append(
            "SMT busy: speed beside busy siblings over speed alone, and its range over the kernels"
        )
    misses = {r.name: r.miss_cycles for r in found.core_types}
    if costs := ", ".join(f"{short(e.value)} on {name}" for name, e in misses.items() if e):
        lines.append(f"cycles that a cache miss costs: {costs}")
    if found.nominal_ips_missing:
        lines.append(f"no nominal Ips: {found.nominal_ips_missing}")
    return [*lines, *(f"warning: {w}" for w in found.warnings)]


def _row(result: TypeResult) -> list[object]:
    coefficient = result.coefficient
    return [
        result.name,
        cpulist.show(result.pcpus),
        short(coefficient.value),
        f"{coefficient.low:.3f}..{coefficient.high:.3f}",
        *(short(kernel.ratio.value) for kernel in result.kernels),
        None if result.nominal_ips is None else short(result.nominal_ips.value),
        _smt_busy(result),
    ]


def _smt_busy(result: TypeResult) -> str | None:
    """The factor, and its range over the kernels."""
    factor = result.smt_busy_factor
    kernels = [k.smt_busy_factor.value for k in result.kernels if k.smt_busy_factor]
    if factor is None:
        return None
    between = f" ({min(kernels):.2f}..{max(kernels):.2f})" if kernels else ""
    return f"{factor.value:.3f}{between}"
