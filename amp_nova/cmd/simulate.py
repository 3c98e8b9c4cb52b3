"""``amp-nova simulate``: run a scenario with the agent's own control loop on a simulated host."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amp_nova import plugins
from amp_nova.cmd import terminal
from amp_nova.exceptions import ScenarioInvalid
from amp_nova.sim import report
from amp_nova.sim import run as simulation
from amp_nova.sim.scenarios import scenario
from amp_nova.sim.slots import run as slots

EPILOG = """examples:
  amp-nova simulate scenario.yaml
  amp-nova simulate scenario.yaml --policy credit --set seed=7 --format json
  amp-nova simulate scenario.yaml --policy integrated --set slots=true

The same scenario with the same seed gives the same bytes. The user guide (simulator) documents the
keys of a scenario and defines every number of the result.
"""
PROGRESS_S = 0.2


def add_parser(subparsers: Any) -> None:
    """Add ``simulate`` to the command line."""
    parser = subparsers.add_parser(
        "simulate",
        help="run a scenario: a host, its guests and what they do",
        description="Run a scenario with the agent's own control loop on a simulated host.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the result; raises ``AmpError`` for invalid input."""
    wanted = scenario.load(args.scenario)
    settings = _pairs(args.settings)
    simulate = slots.run if _boolean("slots", settings.pop("slots", "false")) else simulation.run
    wanted = scenario.override(wanted, settings)
    name = wanted.policy if args.policy is None else args.policy
    policy = plugins.load_policy(name, **settings)
    result = simulate(wanted, policy, progress=_progress(wanted.duration_s))
    print(report.to_json(result) if args.format == "json" else report.to_table(result))
    return 0


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ScenarioInvalid(f"--set '{text}' is not allowed: write KEY=VALUE")
        if key in settings:
            raise ScenarioInvalid(f"--set {key} is given twice: remove one")
        settings[key] = value
    return settings


def _boolean(key: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ScenarioInvalid(f"--set {key}='{text}' is not allowed: give true or false")
    return text.lower() == "true"


def _progress(duration_s: float) -> Callable[[float], None] | None:
    """Shows the progress of a run in percent, on a terminal only."""
    if not sys.stderr.isatty():
        return None
    shown_s = time.monotonic()

    def show(at_s: float) -> None:
        nonlocal shown_s
        if at_s >= duration_s:
            terminal.progress("")
        elif time.monotonic() - shown_s > PROGRESS_S:
            shown_s = time.monotonic()
            terminal.progress(f"{at_s / duration_s:4.0%}")

    return show
