"""``amp-nova simulate`` of a cloud: arrivals, refusals and bookings, hour by hour."""

import argparse
from dataclasses import asdict, replace
from pathlib import Path

import yaml

from amp_nova import plugins
from amp_nova.cmd import table
from amp_nova.cmd.settings import pairs
from amp_nova.cmd.table import Table
from amp_nova.cmd.terminal import progress
from amp_nova.exceptions import ScenarioInvalid
from amp_nova.sim.cloud import description
from amp_nova.sim.cloud.run import run as simulate
from amp_nova.sim.report import rounded
from amp_nova.sim.scenarios.document import Value

REPLACEABLE = ("duration_s", "seed")
HEADINGS = ("hour", "instances", "booked", "best effort", "unplaced")


def run(args: argparse.Namespace, whole: Value, path: Path) -> int:
    """Print what happens in a cloud; raises ``AmpError`` for invalid input."""
    given = pairs("--set", args.settings)
    for key in given:
        if key not in REPLACEABLE:
            allowed = " and ".join(REPLACEABLE)
            raise ScenarioInvalid(f"--set {key} is not allowed for a cloud: set only {allowed}")
    replaced = {k: Value(yaml.ScalarNode("", text), "--set", k) for k, text in given.items()}
    wanted = description.read(whole, path.stem, replaced)
    policy = plugins.load_policy(wanted.cloud.policy if args.policy is None else args.policy)
    cloud = replace(wanted.cloud, policy=policy.name)

    def show(at_s: float) -> None:
        progress(f"{wanted.name}: hour {at_s / 3600:.0f} of {wanted.duration_s / 3600:.0f}")

    result = simulate(cloud, wanted.duration_s, wanted.seed, show)
    progress("")
    rows = [
        [s.at_s / 3600.0, s.instances, s.booked_refcores, s.best_effort_refcores, s.unplaced]
        for s in result.samples
    ]
    head = (
        f"{wanted.name}: {wanted.duration_s:g} s of {len(cloud.hosts)} hosts, best-effort policy "
        f"{cloud.policy}"
    )
    foot = (
        f"{result.arrived} arrived, {result.refused} refused; booked and best effort in reference "
        f"cores, of {result.bookable_refcores:g} that can be booked"
    )
    answer = {
        "scenario": wanted.name,
        "policy": cloud.policy,
        "duration_s": wanted.duration_s,
        "hosts": len(cloud.hosts),
        **asdict(result),
        "samples": [asdict(sample) for sample in result.samples],
    }
    table.show(args, Table(list(HEADINGS), rows), rounded(answer), ([head, ""], ["", foot]))
    return 0
