"""``amp-nova simulate``: run a scenario with the agent's own control loop on a simulated host."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from amp_nova import plugins
from amp_nova.cmd import agent_options, simulate_cloud, table
from amp_nova.cmd.settings import pairs
from amp_nova.cmd.table import Table, cell
from amp_nova.exceptions import ScenarioInvalid
from amp_nova.sim import report
from amp_nova.sim import run as simulation
from amp_nova.sim.cloud import description
from amp_nova.sim.report import Result, ResultWithPower
from amp_nova.sim.scenarios import document, scenario
from amp_nova.sim.slots import run as slots

EPILOG = """examples:
  amp-nova simulate scenario.yaml
  amp-nova simulate scenario.yaml --policy credit --set seed=7 --format json
  amp-nova simulate scenario.yaml --policy integrated --set slots=true

The same scenario with the same seed gives the same bytes. The user guide (simulator) documents the
keys of a scenario and defines every number of the result.
"""
COLUMNS = {
    "vm": "name",
    "booked": "booked_refcores",
    "delivered": "delivered_ratio",
    "least": "delivered_ratio_min",
    "most": "delivered_ratio_max",
    "progress": "progress_refcores",
    "on fast": "fast_share",
    "slowdown": "slowdown",
    "done at s": "completion_s",
}
COLUMNS_OF_SOME = {
    "I/O byte/s": "io_bytes_s",
    "usage": "combined_usage_ratio",
    "requests": "requests_completed",
    "p50 s": "latency_p50_s",
    "p95 s": "latency_p95_s",
    "p99 s": "latency_p99_s",
}
"""Shown if a VM of the scenario has them."""


def add_parser(subparsers: Any) -> None:
    """Add ``simulate`` to the command line."""
    parser = subparsers.add_parser(
        "simulate",
        description="Run a scenario with the agent's own control loop on a simulated host.",
        epilog=EPILOG,
    )
    parser.add_argument("scenario", type=Path, metavar="SCENARIO.yaml", help="what to run")
    parser.add_argument(
        "--policy", metavar="NAME", help="best-effort policy instead of the scenario's"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="the scenario's seed, duration_s or ips_controller, slots=true for a scheduler in "
        "slots of 10 ms (credit, aash, integrated), or a parameter of the policy; may be repeated",
    )
    table.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the result; raises ``AmpError`` for invalid input."""
    whole = document.load(args.scenario)
    if description.describes(whole):
        return simulate_cloud.run(args, whole, args.scenario)
    wanted = scenario.read(whole, args.scenario.stem, agent_options.read)
    settings = pairs("--set", args.settings)
    simulate = slots.run if _boolean("slots", settings.pop("slots", "false")) else simulation.run
    wanted = scenario.override(wanted, settings)
    name = wanted.policy if args.policy is None else args.policy
    policy = plugins.read_policy(name, **settings)
    result = simulate(wanted, policy)
    vms = [{"name": vm, **asdict(found)} for vm, found in result.vms.items()]
    some = {head: key for head, key in COLUMNS_OF_SOME.items() if any(key in vm for vm in vms)}
    columns = COLUMNS | some
    rows = [[vm.get(key) for key in columns.values()] for vm in vms]
    table.show(args, Table(list(columns), rows), report.rounded(result), _around(result))
    return 0


def _boolean(key: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ScenarioInvalid(f"--set {key}='{text}' is not allowed: give true or false")
    return text.lower() == "true"


def _around(result: Result) -> tuple[list[str], list[str]]:
    """The lines above and below the table of the guests."""
    head = f"{result.scenario}: {result.duration_s:g} s, best-effort policy {result.policy}"
    host = (
        f"throughput {cell(result.throughput)}, ASP {cell(result.asp)}, "
        f"unfairness {cell(result.unfairness)}, migrations {result.migrations} "
        f"({result.cross_llc_migrations} between caches), "
        f"fast cores idle {cell(result.fast_idle_ratio)}"
    )
    if isinstance(result, ResultWithPower):
        host += (
            f", power {cell(result.power_w)} W, "
            f"performance per watt {cell(result.performance_per_watt)}"
        )
    return [head, ""], ["", host]
