"""``amp-nova topology``: core types, pCPUs and coefficients, with their sources."""

import argparse
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from amp_nova import conf as options
from amp_nova.cmd import table
from amp_nova.cmd.parser import add_config_file
from amp_nova.cmd.table import Cell, Table, formatted
from amp_nova.exceptions import AnswerIsNo
from amp_nova.host.machine import load_topology
from amp_nova.model import cpulist
from amp_nova.model.topology import Topology
from amp_nova.profiling.io_overlap import slow_pcpus

HEADINGS = (
    "core type",
    "pCPUs",
    "cores",
    "threads/core",
    "coefficient",
    "coefficient from",
    "nominal Ips",
)
EPILOG = """\
examples:
  amp-nova topology
  amp-nova topology --format json
  amp-nova topology --root /tmp/recording    another machine's recorded /sys and /proc
  amp-nova topology --host-services          how to keep host services off the fast cores
"""


def add_parser(subparsers: Any) -> None:
    """Add ``topology`` to the command line."""
    parser = subparsers.add_parser(
        "topology",
        description="Show this host's core types, slowest first.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="read DIR/sys and DIR/proc; this host's configuration does not apply to them",
    )
    add_config_file(parser)
    parser.add_argument(
        "--host-services",
        action="store_true",
        help="print commands that keep host services on slow cores; change nothing",
    )
    table.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the topology, or with ``--host-services`` a recommendation.

    Raises ``AmpError`` if the topology cannot be determined, ``AnswerIsNo`` without recommendation.
    """
    topology = load_topology(_configuration(args.root, args.config_file))
    if args.host_services:
        _recommend(topology, args.format)
    else:
        table.show(args, _table(topology), _as_dict(topology), ((), _notes(topology)))
    return 0


def _recommend(topology: Topology, form: str) -> None:
    """Print the commands that confine host services to slow cores that are not isolated."""
    slow = slow_pcpus(topology) - {p.id for p in topology.pcpus if p.isolated}
    if not slow:
        raise AnswerIsNo("all usable cores are of one type: leave the host services where they are")
    cpuset = cpulist.show(slow)
    if form != "table":
        table.show_document(form, {"pcpus": sorted(slow), "cpuset": cpuset})
        return
    print(
        "# Confines host services to slow cores. Instances, in machine.slice, are not affected.\n"
        "# First check services that pin themselves, such as a DPDK switch.\n"
        f"systemctl set-property system.slice AllowedCPUs={cpuset}\n"
        f"systemctl set-property user.slice AllowedCPUs={cpuset}\n"
        "# To undo this, set both to an empty list."
    )


def _as_dict(topology: Topology) -> dict[str, Any]:
    """The JSON output, whose keys scripts rely on."""
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


def _table(topology: Topology) -> Table:
    rows = []
    for t in topology.core_types:
        pcpus = topology.pcpus_of(t.name)
        cores = {p.siblings for p in topology.pcpus if p.id in pcpus}
        rows.append(
            (
                t.name,
                cpulist.show(pcpus),
                len(cores),
                t.threads_per_core,
                formatted(t.coefficient, ".3f", "unknown"),
                Cell(t.coefficient_source, t.coefficient_source or "-"),
                formatted(t.nominal_ips, ".3g"),
            )
        )
    return Table(HEADINGS, rows)


def _notes(topology: Topology) -> Sequence[str]:
    """The lines below the table."""
    isolated = cpulist.show(p.id for p in topology.pcpus if p.isolated)
    notes = ["", f"reference core: {topology.reference}", f"source: {topology.source}"]
    notes += [f"isolated pCPUs: {isolated}"] if isolated else []
    notes += [f"offline pCPUs: {cpulist.show(topology.offline)}"] if topology.offline else []
    warnings = [f"warning: {w}" for w in topology.warnings]
    return [*notes, *([""] if warnings else []), *warnings]


def _configuration(root: str | None, files: list[str] | None) -> cfg.ConfigOpts:
    """This host's configuration, or with ``--root`` only that of ``--config-file``."""
    conf = options.load(files=[] if root and files is None else files)
    if root:
        conf.set_override("root", root, "topology")
        conf.set_default("calibration_file", "", "topology")  # the default is this host's
    return conf
