# SPDX-License-Identifier: Apache-2.0
"""What commands print of core types: ``amp-nova topology``, and the table of ``calibrate``."""

import argparse
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from oslo_config import cfg

from amp_nova import conf as options
from amp_nova.agent.operator import control_socket
from amp_nova.cmd.arguments import add_config_file
from amp_nova.cmd.command import Answer, Report, short
from amp_nova.exceptions import AmpError
from amp_nova.hardware.calibration import Calibration, TypeResult
from amp_nova.host.machine import load_topology
from amp_nova.model import cpulist
from amp_nova.model.topology import Topology

COLUMNS = (
    "Core Type",
    "pCPUs",
    "Cores",
    "Threads/Core",
    "Coefficient",
    "Coefficient From",
    "Nominal Ips",
)
DRIFT_MAX = 0.1
"""As in the alert ``AmpCoefficientDrifts``."""


class ShowTopology(Report):
    """Show this host's core types, slowest first"""

    _epilog = """\
examples:
  amp-nova topology
  amp-nova topology --format json
  amp-nova topology --root /tmp/recording    another machine's recorded /sys and /proc
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--root",
            metavar="DIR",
            help="read DIR/sys and DIR/proc; this host's configuration does not apply to them",
        )
        add_config_file(parser)

    def answer(self, args: argparse.Namespace) -> Answer:
        # With --root, only the configuration that is named counts.
        conf = options.load(files=args.config_file or ([] if args.root else None))
        if args.root:
            conf.set_override("root", args.root, "topology")
            conf.set_default("calibration_file", "", "topology")  # the default is this host's
        topology = load_topology(conf)
        if not args.root:
            topology = dataclasses.replace(topology, warnings=(*topology.warnings, *_drifts(conf)))
        rows = []
        for t in topology.core_types:
            pcpus = topology.pcpus_of(t.name)
            cores = len({p.siblings for p in topology.pcpus if p.id in pcpus})
            speed = short(t.coefficient), t.coefficient_source, short(t.nominal_ips)
            rows.append((t.name, cpulist.show(pcpus), cores, t.threads_per_core, *speed))
        isolated = cpulist.show(p.id for p in topology.pcpus if p.isolated)
        notes = ["", f"reference core: {topology.reference}", f"source: {topology.source}"]
        notes += [f"isolated pCPUs: {isolated}"] if isolated else []
        notes += [f"offline pCPUs: {cpulist.show(topology.offline)}"] if topology.offline else []
        warnings = [f"warning: {w}" for w in topology.warnings]
        notes += ["", *warnings] if warnings else []
        return Answer(COLUMNS, rows, as_dict(topology), below=notes)


def _drifts(conf: cfg.ConfigOpts) -> list[str]:
    """Where guests contradict the coefficients in force, as warnings; none without an agent."""
    reply = None
    with contextlib.suppress(AmpError):
        reply = control_socket.query(Path(conf.agent.state_path), {"command": "status"})
    return [
        f"guests find core type {name} {ratio:.2f} times as fast as its coefficient says: calibrate"
        " this host (amp-nova calibrate), then restart the agent"
        for name, ratio in (reply or {}).get("drift", {}).items()
        if abs(ratio - 1.0) > DRIFT_MAX
    ]


def as_dict(topology: Topology) -> dict[str, Any]:
    """A topology as JSON output, whose keys scripts rely on."""
    return {
        "source": topology.source,
        "reference": topology.reference,
        "core_types": [
            {
                "name": t.name,
                "pcpus": sorted(topology.pcpus_of(t.name)),
                "threads_per_core": t.threads_per_core,
                "coefficient": t.coefficient,
                "coefficient_source": t.coefficient_source,
                "nominal_ips": t.nominal_ips,
                "smt_busy_factor": t.smt_busy_factor,
            }
            for t in topology.core_types
        ],
        "offline": list(topology.offline),
        "warnings": list(topology.warnings),
    }


def calibration_table(calibration: Calibration, end: str) -> Answer:
    """What ``amp-nova calibrate`` prints: a row for every core type, a column for every kernel.

    ``end``: the last line below.
    """
    kernels = [k.name for k in calibration.kernels]
    return Answer(
        ["Core Type", "pCPUs", "Coefficient", "Interval", *kernels, "Nominal Ips", "SMT Busy"],
        [_row(result) for result in calibration.core_types],
        dataclasses.asdict(calibration),
        below=[*_calibration_notes(calibration), end],
    )


def _calibration_notes(calibration: Calibration) -> list[str]:
    """The lines below the table."""
    confidence = min(r.coefficient.confidence_ratio for r in calibration.core_types)
    host = f" of host '{calibration.reference_host}'" if calibration.reference_host else ""
    bound = ", ".join(k.name for k in calibration.kernels if k.cpu_bound)
    origin = calibration.provenance
    lines = [
        "",
        f"reference core: '{calibration.reference}'{host}; coefficient: geometric mean of {bound}",
        f"interval: contains the true coefficient with {confidence:.0%} confidence",
        f"measured: {origin.repeat} rounds of {origin.run_s} s with Python {origin.python_version}",
    ]
    if any(result.smt_busy_factor for result in calibration.core_types):
        lines.append(
            "SMT busy: speed beside busy siblings over speed alone, and its range over the kernels"
        )
    misses = {r.name: r.miss_cycles for r in calibration.core_types}
    if costs := ", ".join(f"{short(e.value)} on {name}" for name, e in misses.items() if e):
        lines.append(f"cycles that a cache miss costs: {costs}")
    if calibration.nominal_ips_missing:
        lines.append(f"no nominal Ips: {calibration.nominal_ips_missing}")
    return [*lines, *(f"warning: {w}" for w in calibration.warnings)]


def _row(result: TypeResult) -> list[object]:
    coefficient, factor, busy = result.coefficient, result.smt_busy_factor, None
    if factor is not None:
        kernels = [k.smt_busy_factor.value for k in result.kernels if k.smt_busy_factor]
        between = f" ({min(kernels):.2f}..{max(kernels):.2f})" if kernels else ""
        busy = f"{factor.value:.3f}{between}"
    return [
        result.name,
        cpulist.show(result.pcpus),
        short(coefficient.value),
        f"{coefficient.low:.3f}..{coefficient.high:.3f}",
        *(short(kernel.ratio.value) for kernel in result.kernels),
        None if result.nominal_ips is None else short(result.nominal_ips.value),
        busy,
    ]
