"""Runs a scenario: the agent's own loop over a simulated host, by simulated time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from amp_nova.agent.fast_loop import IpsSettings
from amp_nova.agent.loop import Loop, Settings
from amp_nova.agent.state.policy_runner import PolicySettings
from amp_nova.control.entitlement import Terms
from amp_nova.plugins import load_policy
from amp_nova.policies.api import Policy
from amp_nova.profiling.profiles import ProfileSettings
from amp_nova.sim import report
from amp_nova.sim.host import SimHost
from amp_nova.sim.report import Result
from amp_nova.sim.scenarios.scenario import Scenario
from amp_nova.sim.windows import WINDOW_S, Windows

TOGETHER_S = 1e-9


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the loop runs, and the policy in it; without ``enforce`` bookings are not kept."""

    cycle_s: float = 1.0
    policy_interval_s: float = 2.5
    enforce: bool = True
    ips_controller: str = "default"


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time at which something besides the guests happens."""

    at_s: float
    cycle: bool
    window: bool
    tick: bool = False


def moments(duration_s: float, pace: Pace, tick_s: float | None = None) -> Iterator[Moment]:
    """Cycles, decisions of the policy (each in a cycle of its own) and window edges, by time.

    The first cycle is at 0, before any guest has run. The end closes the last window. With
    ``tick_s`` the fast loop looks between them.
    """
    steps = {"cycle": pace.cycle_s, "policy": pace.policy_interval_s, "window": WINDOW_S}
    turns = {"cycle": 0, "policy": 0, "window": 1}
    if tick_s is not None:
        steps["tick"], turns["tick"] = tick_s, 1
    while True:
        # Multiplied, not added up, so that edges that belong together stay together.
        due = {what: turns[what] * step for what, step in steps.items()}
        at_s = min(due.values())
        # What is due together is due at the same time, whatever floating point makes of it.
        at_s = max(time for time in due.values() if time <= at_s + TOGETHER_S)
        if at_s >= duration_s:
            yield Moment(duration_s, False, True)
            return
        now = {what for what, time in due.items() if time <= at_s}
        for what in now:
            turns[what] += 1
        yield Moment(at_s, bool(now & {"cycle", "policy"}), "window" in now, "tick" in now)


def _loop(host: SimHost, scenario: Scenario, policy: Policy, pace: Pace) -> Loop:
    settings = Settings(
        Terms(cycle_s=pace.cycle_s, enforce=pace.enforce),
        profiles=ProfileSettings(interval_s=pace.policy_interval_s),
        policy=PolicySettings(pace.policy_interval_s, seed=scenario.seed, idle_class=pace.enforce),
        ips=IpsSettings(pace.ips_controller),
    )
    return Loop(host, host, settings, policy, stopwatch=lambda: 0.0)


def _tick_s(loop: Loop, scenario: Scenario) -> float | None:
    """How often the fast loop looks, if there is anything for it."""
    counts = any(v.ips is not None for g in scenario.guests for v in g.booking.vcpus)
    return loop.fast.tick_s if counts else None


def run(
    scenario: Scenario,
    policy: Policy | None = None,
    pace: Pace | None = None,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Run a scenario with its own policy or another one; tells ``progress`` the simulated time."""
    pace = pace or Pace()
    policy = policy or load_policy(scenario.policy)
    reference_ips = scenario.reference_ips
    host = SimHost(scenario.topology, scenario.guests, scenario.seed, reference_ips)
    loop = _loop(host, scenario, policy, pace)
    windows = {
        g.name: Windows(g.booking, scenario.topology, reference_ips) for g in scenario.guests
    }
    opened_s = 0.0
    for moment in moments(scenario.duration_s, pace, _tick_s(loop, scenario)):
        # Not even by nothing before the first cycle: guests get their pCPUs when time advances.
        if moment.at_s > host.now_s:
            host.advance(moment.at_s)
        if moment.window:
            for name, window in windows.items():
                if window.booked:
                    window.close(host.meters(name), moment.at_s - opened_s)
            opened_s = moment.at_s
        if moment.tick and loop.fast.active:
            loop.fast.tick()
        if moment.cycle:
            loop.cycle()
        if progress is not None:
            progress(moment.at_s)
    outcomes = {g.name: host.outcome(g.name) for g in scenario.guests}
    vms = {
        g.name: report.of_guest(g, outcomes[g.name], windows[g.name].result(), reference_ips)
        for g in scenario.guests
    }
    return report.of_run(scenario, policy.name, vms, outcomes.values())
