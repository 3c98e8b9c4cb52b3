"""A calibration for people: one row per core type, and below it how to read it."""

from collections.abc import Sequence

from amp_nova.hardware.calibration import Calibration, Estimate, TypeResult
from amp_nova.model import cpulist


def lines(found: Calibration) -> list[str]:
    """The table, line by line."""
    kernels = [k.name for k in found.kernels]
    head = ["core type", "pCPUs", "coefficient", "interval", *kernels, "nominal Ips", "SMT busy"]
    rows = [head, *(_row(result) for result in found.core_types)]
    confidence = min(r.coefficient.confidence_ratio for r in found.core_types)
    host = f" of host '{found.reference_host}'" if found.reference_host else ""
    bound = ", ".join(k.name for k in found.kernels if k.cpu_bound)
    made = found.provenance
    below = [
        f"reference core: '{found.reference}'{host}; coefficient: geometric mean of {bound}",
        f"interval: holds the true coefficient with {confidence:.0%} confidence",
        f"measured: {made.repeat} rounds of {made.run_s} s with stress-ng {made.stress_ng_version}",
    ]
    if found.nominal_ips_missing:
        below.append(f"no nominal Ips: {found.nominal_ips_missing}")
    return [*_aligned(rows), "", *below, *(f"warning: {w}" for w in found.warnings)]


def _row(result: TypeResult) -> list[str]:
    coefficient = result.coefficient
    return [
        result.name,
        cpulist.show(result.pcpus),
        f"{coefficient.value:.3f}",
        f"{coefficient.low:.3f}..{coefficient.high:.3f}",
        *(f"{kernel.ratio.value:.3f}" for kernel in result.kernels),
        _or_dash(result.nominal_ips, ".3g"),
        _or_dash(result.smt_busy_factor, ".3f"),
    ]


def _or_dash(estimate: Estimate | None, form: str) -> str:
    return "-" if estimate is None else format(estimate.value, form)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
