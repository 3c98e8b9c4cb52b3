# SPDX-License-Identifier: Apache-2.0
"""Runs a scenario: the agent's own control loop over a simulated host, in simulated time."""

from collections.abc import Iterator
from dataclasses import replace

from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.exceptions import ConfigInvalid
from amp_nova.plugins import load_policy, make_policy
from amp_nova.policies.api import Policy
from amp_nova.policies.none import NonePolicy
from amp_nova_lab import report
from amp_nova_lab.host import SimHost
from amp_nova_lab.policies.as_printed import AS_PRINTED
from amp_nova_lab.printed_controller import LOOPS, SP_S
from amp_nova_lab.report import WINDOW_S, Result, Windows
from amp_nova_lab.scenarios.scenario import Scenario

TOGETHER_S = 1e-9


def read_policy(text: str, /, **params: object) -> Policy:
    """Load the policy that a text such as ``amp-r-fair:fair_ratio=0.35`` names.

    ``params`` override the parameters in the text. Raises what ``load_policy`` raises.
    """
    name, *pairs = text.split(":")
    own: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or key in own:
            raise ConfigInvalid(
                f"policy '{text}' is not allowed: write NAME or NAME:KEY=VALUE, each key once"
            )
        own[key] = value
    own |= params
    if "printed" in own and name in AS_PRINTED:
        return make_policy(AS_PRINTED[name], name, own)
    return load_policy(name, **own)


def moments(
    duration_s: float, settings: LoopSettings, tick_s: float | None = None
) -> Iterator[tuple[float, set[str]]]:
    """Times in order, each with what is due then: ``cycle``, ``window`` and ``tick``.

    The first cycle is at 0, before any guest runs; the end closes the last window. A tick of the
    loop is due every ``tick_s``, if given.
    """
    steps = {"cycle": settings.terms.cycle_s, "window": WINDOW_S}
    turns = {"cycle": 0, "window": 1}
    if tick_s is not None:
        steps["tick"], turns["tick"] = tick_s, 1
    while True:
        # Multiplied rather than added up, so that edges that coincide stay together.
        due = {what: turns[what] * step for what, step in steps.items()}
        at_s = min(due.values())
        # What is due together happens together, despite rounding.
        at_s = max(time for time in due.values() if time <= at_s + TOGETHER_S)
        if at_s >= duration_s:
            yield duration_s, {"window"}
            return
        now = {what for what, time in due.items() if time <= at_s}
        for what in now:
            turns[what] += 1
        yield at_s, now


def _settings(scenario: Scenario) -> LoopSettings:
    """The loop's settings for a scenario."""
    agent, terms = scenario.agent, scenario.agent.terms
    if scenario.ips_controller != "default":
        terms = replace(terms, tick_s=SP_S)
    return replace(agent, terms=terms, policy=replace(agent.policy, seed=scenario.seed))


def _begun(scenario: Scenario, settings: LoopSettings, policy: Policy) -> tuple[SimHost, Loop]:
    """The host of a scenario and the loop that controls it, at time 0."""
    host = SimHost(
        scenario.topology,
        scenario.guests,
        scenario.seed,
        machine=scenario.machine,
    )
    loop = LOOPS[scenario.ips_controller]
    return host, loop(host, host, settings, policy, stopwatch=lambda: 0.0)


def not_enforced(scenario: Scenario) -> list[str]:
    """A sentence for each booking of a vCPU that cannot be enforced, as the first cycle shows."""
    _, loop = _begun(scenario, _settings(scenario), NonePolicy())
    return [
        f"VM '{vm}', vCPU {index}: {entitlement.note}"
        for (vm, index), entitlement in loop.cycle().entitlements.items()
        if entitlement.booking.kind != "best_effort" and entitlement.note is not None
    ]


def run(scenario: Scenario, policy: Policy | None = None) -> Result:
    """Run a scenario with its own policy or another one."""
    settings = _settings(scenario)
    policy = policy or read_policy(scenario.policy)
    host, loop = _begun(scenario, settings, policy)
    windows = {
        g.name: Windows(g.booking, scenario.topology) for g in scenario.guests if g.booking.booked
    }
    counts = any(v.ips is not None for g in scenario.guests for v in g.booking.vcpus)
    tick_s = settings.terms.tick_s if counts else None
    opened_s = 0.0
    for at_s, due in moments(scenario.duration_s, settings, tick_s):
        # Not before the first cycle: guests get their pCPUs as soon as time advances.
        if at_s > host.now_s:
            host.advance(at_s)
        if "window" in due:
            for name, window in windows.items():
                window.close(host.meters(name), at_s - opened_s)
            opened_s = at_s
        if "cycle" in due:
            loop.cycle()
        if "tick" in due:
            loop.tick()
    delivered = {name: window.result() for name, window in windows.items()}
    return report.of_run(scenario, policy.name, host, delivered)
