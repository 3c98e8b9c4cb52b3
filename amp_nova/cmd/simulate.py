"""``amp-nova simulate``: run a scenario with the agent's own control loop on a simulated host."""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amp_nova import plugins
from amp_nova.cmd import terminal
from amp_nova.control.ips_controller import CONTROLLERS
from amp_nova.exceptions import ScenarioInvalid
from amp_nova.sim import report
from amp_nova.sim import run as simulation
from amp_nova.sim.scenarios import scenario
from amp_nova.sim.scenarios.scenario import DURATION_MAX_S, SEED_MAX, Scenario
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
    wanted = _override(wanted, settings)
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


def _override(wanted: Scenario, settings: dict[str, str]) -> Scenario:
    """The scenario with the settings that concern it, which are taken out of ``settings``."""
    readers: dict[str, Callable[[str], Any]] = {
        "seed": _seed,
        "duration_s": _duration_s,
        "ips_controller": _ips_controller,
    }
    found = {key: read(settings.pop(key)) for key, read in readers.items() if key in settings}
    return dataclasses.replace(wanted, **found)


def _boolean(key: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ScenarioInvalid(f"--set {key}='{text}' is not allowed: give true or false")
    return text.lower() == "true"


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= SEED_MAX):
        raise ScenarioInvalid(f"--set seed='{text}' is not allowed: give a whole number from 0")
    return int(text)


def _duration_s(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= DURATION_MAX_S:  # also refuses NaN
        raise ScenarioInvalid(
            f"--set duration_s='{text}' is not allowed: give seconds above 0, "
            f"at most {DURATION_MAX_S:.0f}"
        )
    return value


def _ips_controller(text: str) -> str:
    if text not in CONTROLLERS:
        raise ScenarioInvalid(
            f"--set ips_controller='{text}' is not allowed: give {', '.join(CONTROLLERS)}"
        )
    return text


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
