# SPDX-License-Identifier: Apache-2.0
"""``amp-nova whatif``: a scenario as it is and as it would be, side by side."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from amp_nova.cmd.arguments import pairs
from amp_nova.cmd.command import Answer, Report, progress, short
from amp_nova.exceptions import ConfigInvalid
from amp_nova.flavor.extra_specs import fault
from amp_nova_lab import run as simulation
from amp_nova_lab.commands import inputs
from amp_nova_lab.recording import what_if
from amp_nova_lab.recording.what_if import Distribution, Intervals, Numbers, Recorded
from amp_nova_lab.report import Result, rounded
from amp_nova_lab.scenarios import document
from amp_nova_lab.scenarios.scenario import Scenario

COLUMNS = (
    "What If",
    "VM",
    "Recorded",
    "Progress",
    "Then",
    "Median",
    "Interval",
    "Slowdown",
    "Slowdown Then",
    "Ratio",
    "Ratio Then",
)
LEGEND = """\
progress: mean speed per vCPU, 1 = the slowest core type; recorded: as measured on the host.
slowdown: speed alone on this host over the speed it got. ratio: delivered over booked.
then: with the changes. interval: contains what it would be 9 times of 10, for other seeds, for the
errors of the measured speedups and for the difference between the recording and its simulation.
median: of 20 runs; it is not then where chance decides, as with the policies none and credit."""
SHORT = 0.98
"""A booking does not fit if less than this share of it is delivered."""
CORES_MOST = 4096


@dataclass(frozen=True, slots=True)
class Alternative:
    """One answer: what was changed, the result, and how it may differ."""

    label: str
    result: Result
    distribution: Distribution
    intervals: Intervals


class WhatIf(Report):
    """Run a scenario as it is and as it would be with changes, and compare"""

    _epilog = """examples:
  amp-nova record --duration 10m -o host.yaml
  amp-nova whatif host.yaml --policy hsp
  amp-nova whatif host.yaml --core-type fast=+2 --book web=0.5

Any scenario will do, but only for recordings do intervals include the errors of the model and of
the speedups. Several changes are made together; several policies are compared, each with all the
other changes.
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:

        def add(name: str, dest: str, metavar: str, text: str) -> None:
            parser.add_argument(
                name, action="append", default=[], dest=dest, metavar=metavar, help=text
            )

        parser.add_argument(
            "scenario", type=Path, metavar="SCENARIO.yaml", help="such as a recording"
        )
        policy = "another best-effort policy; may be repeated"
        cores = "more or fewer cores of a type; may be repeated"
        book = "another booking of each vCPU of a VM, 0 for none; may be repeated"
        add("--policy", "policies", "NAME[:KEY=VALUE...]", policy)
        add("--core-type", "cores", "NAME=+N|-N", cores)
        add("--book", "bookings", "VM=REFCORES", book)

    def answer(self, args: argparse.Namespace) -> Answer:
        """Run all; raises ``AmpError`` for invalid input."""
        whole = document.load(args.scenario)
        as_it_is, recording = inputs.read(whole), what_if.recorded(whole)
        changed, changes = _changed(args, as_it_is)
        as_it_is, changed = (what_if.beside_others(s, whole) for s in (as_it_is, changed))
        if not args.policies and not changes:
            raise ConfigInvalid("say what is to change: give --policy, --core-type or --book")
        inputs.warn(self.log, changed)
        own = simulation.read_policy(as_it_is.policy)
        policies = inputs.policies(args.policies) or {"": own}
        progress("the scenario as it is")
        as_is = simulation.run(as_it_is, own)
        model = None if recording is None else what_if.model_error(as_is, recording)
        answers = []
        for number, (text, policy) in enumerate(policies.items(), 1):
            label = ", ".join([f"policy {text}"] * bool(text) + changes)
            progress(f"{label} ({number} of {len(policies)})")
            answers.append(Alternative(label, *what_if.predict(changed, policy, recording, model)))
        progress("")
        head = f"{as_is.scenario}: {as_is.duration_s:g} s, best-effort policy {as_it_is.policy}"
        messages = [line for answer in answers for line in _message(as_is, answer)]
        return Answer(
            COLUMNS,
            _rows(as_is, answers, recording),
            rounded(_document(as_is, answers, recording, model)),
            above=[head, ""],
            below=["", *messages, _accuracy(recording, model), "", LEGEND],
        )


def _changed(args: argparse.Namespace, made: Scenario) -> tuple[Scenario, list[str]]:
    """The scenario with other cores and bookings, and each change in words."""
    changes = []
    for name, text in pairs("--core-type", args.cores).items():
        more = _cores(name, text)
        made = what_if.with_cores(made, name, more)
        changes.append(f"{abs(more)} {'more' if more > 0 else 'fewer'} {name}")
    for name, text in pairs("--book", args.bookings).items():
        if text != "0" and (wrong := fault("amp:pref_core", text)):
            raise ConfigInvalid(f"--book {name}={text} is not allowed: {wrong}; 0 books nothing")
        made = what_if.with_booking(made, name, text)
        changes.append(f"{name} books {'nothing' if text == '0' else text}")
    return made, changes


def _cores(name: str, text: str) -> int:
    sign, digits = text[:1], text[1:]
    if sign in ("+", "-") and digits.isascii() and digits.isdecimal() and len(digits) < 6:
        more = int(text)
        if 0 < abs(more) <= CORES_MOST:
            return more
    raise ConfigInvalid(
        f"--core-type {name}={text} is not allowed: write {name}=+N or {name}=-N, with N from 1 to "
        f"{CORES_MOST}"
    )


def _rows(
    as_is: Result, answers: Sequence[Alternative], recording: Recorded | None
) -> list[list[object]]:
    rows: list[list[object]] = []
    for answer in answers:
        for name, then in answer.result.vms.items():
            key = name, "progress_refcores"
            now, interval, runs = as_is.vms[name], answer.intervals[key], answer.distribution[key]
            measured = recording[name].measures if recording and name in recording else {}
            rows.append(
                [
                    answer.label,
                    name,
                    short(measured.get("progress_refcores")),
                    short(now.progress_refcores),
                    short(then.progress_refcores),
                    short(median(runs)),
                    _interval_text(interval) or None,
                    short(now.slowdown),
                    short(then.slowdown),
                    short(now.delivered_ratio),
                    short(then.delivered_ratio),
                ]
            )
    return rows


def _interval_text(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{short(interval[0])}..{short(interval[1])}"


def _message(as_is: Result, answer: Alternative) -> list[str]:
    """What an answer says, in a line or two."""
    parts = []
    for name in ("throughput", "asp", "unfairness", "fast_idle_ratio"):
        before, after = getattr(as_is, name), getattr(answer.result, name)
        interval = _interval_text(answer.intervals.get(("", name)))
        title = {"asp": "ASP", "fast_idle_ratio": "fast cores idle"}.get(name, name)
        within = f" ({interval})" if interval else ""
        parts.append(f"{title} {short(before)} -> {short(after)}{within}")
    lines = [f"{answer.label}: {', '.join(parts)}"]
    for name, vm in answer.result.vms.items():
        ratio = vm.delivered_ratio
        if ratio is not None and ratio < SHORT:
            lines.append(f"{answer.label}: {name} would get {ratio:.0%} of its booking")
    return lines


def _accuracy(recording: Recorded | None, model: Numbers | None) -> str:
    """How far the simulation of the recording is from the recording."""
    if recording is None or model is None:
        return "the error of the model is unknown: the scenario is not a recording"
    progress = ((n, e) for (n, name), e in model.items() if name == "progress_refcores")
    errors = {n: error for n, error in progress if error is not None}
    if not errors:
        return "the error of the model is unknown: no progress was recorded"
    worst = max(errors, key=lambda name: errors[name])
    guessed = [n for n, vm in recording.items() if None in vm.errors]
    text = f"the simulation of the recording is {errors[worst]:.1%} off for {worst}"
    if len(errors) > 1:
        text += ", and no more than that for the others"
    return f"{text}; speedups of {', '.join(guessed)} were never measured" if guessed else text


def _document(
    as_is: Result,
    answers: Sequence[Alternative],
    recording: Recorded | None,
    model: Numbers | None,
) -> dict[str, Any]:
    measured = None
    if recording is not None:
        vms = {name: dict(vm.measures) for name, vm in recording.items()}
        measured = {**what_if.totals(recording), "vms": vms}
    return {
        "as_is": as_is,
        "recorded": measured,
        "model_error_ratio": None if model is None else _plain(model),
        "would_be": [
            {
                "change": a.label,
                "result": a.result,
                "interval": _plain(a.intervals),
                "distribution": _plain(a.distribution),
            }
            for a in answers
        ],
    }


def _plain(numbers: Numbers | Intervals | Distribution) -> dict[str, Any]:
    """The numbers of the host, and those of every VM."""
    totals = {name: number for (vm, name), number in numbers.items() if not vm}
    vms: dict[str, dict[str, Any]] = {}
    for (vm, name), number in numbers.items():
        if vm:
            vms.setdefault(vm, {})[name] = number
    return {**totals, "vms": vms}
