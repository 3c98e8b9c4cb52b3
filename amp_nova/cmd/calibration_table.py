"""A calibration as text: a table with one row per core type, and notes on how to read it."""

from amp_nova.cmd.table import Cell, Table, formatted
from amp_nova.hardware.calibration import Calibration, Estimate, TypeResult
from amp_nova.model import cpulist


def table(found: Calibration) -> Table:
    """A row for every core type, with a column for every kernel."""
    kernels = [k.name for k in found.kernels]
    head = ["core type", "pCPUs", "coefficient", "interval", *kernels, "nominal Ips", "SMT busy"]
    return Table(head, [_row(result) for result in found.core_types])


def notes(found: Calibration) -> list[str]:
    """The lines below the table."""
    confidence = min(r.coefficient.confidence_ratio for r in found.core_types)
    host = f" of host '{found.reference_host}'" if found.reference_host else ""
    bound = ", ".join(k.name for k in found.kernels if k.cpu_bound)
    made = found.provenance
    lines = [
        "",
        f"reference core: '{found.reference}'{host}; coefficient: geometric mean of {bound}",
        f"interval: contains the true coefficient with {confidence:.0%} confidence",
        f"measured: {made.repeat} rounds of {made.run_s} s with stress-ng {made.stress_ng_version}",
    ]
    if any(result.smt_busy_factor for result in found.core_types):
        lines.append(
            "SMT busy: speed beside busy siblings over speed alone, and its range over the kernels"
        )
    if found.nominal_ips_missing:
        lines.append(f"no nominal Ips: {found.nominal_ips_missing}")
    return [*lines, *(f"warning: {w}" for w in found.warnings)]


def _row(result: TypeResult) -> list[object]:
    coefficient = result.coefficient
    return [
        result.name,
        cpulist.show(result.pcpus),
        formatted(coefficient.value, ".3f"),
        f"{coefficient.low:.3f}..{coefficient.high:.3f}",
        *(formatted(kernel.ratio.value, ".3f") for kernel in result.kernels),
        _or_dash(result.nominal_ips, ".3g"),
        _smt_busy(result),
    ]


def _smt_busy(result: TypeResult) -> Cell:
    """The factor, and its range over the kernels."""
    factor = result.smt_busy_factor
    found = [k.smt_busy_factor.value for k in result.kernels if k.smt_busy_factor]
    if factor is None or not found:
        return _or_dash(factor, ".3f")
    text = f"{factor.value:.3f} ({min(found):.2f}..{max(found):.2f})"
    return Cell(factor.value, text, numeric=True)


def _or_dash(estimate: Estimate | None, form: str) -> Cell:
    return formatted(None if estimate is None else estimate.value, form)
