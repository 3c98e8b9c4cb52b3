"""Progress of real guests, to compare with a model: by CPU time, and by the work that they count.

The model says how much CPU time on which core type a guest gets. The work that a second of CPU time
does drifts by tens of percent on a shared machine, so progress by work says more about the machine.
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.lab import Agent, until


class Progress(NamedTuple):
    """Reference cores that a guest ran at, by CPU time and by work."""

    by_cpu: float
    by_work: float

    def beside(self, predicted: float) -> str:
        """Both, each with the difference of what was predicted."""
        return "  ".join(
            f"{found:9.3f} {predicted / found - 1.0:+7.1%}" if found else "it did not run"
            for found in self
        )


HEADINGS = "by CPU time, difference; by work, difference"


def _cpu_s(guests: Mapping[str, Any]) -> dict[str, float]:
    return {name: sum(guest.cpu_ns()) / 1e9 for name, guest in guests.items()}


def _rounds(guests: Mapping[str, Any]) -> dict[str, int]:
    return {name: sum(guest.rounds()) for name, guest in guests.items()}


def rates(guests: Mapping[str, Any], length_s: float) -> dict[str, float]:
    """Rounds a second of every guest, over all its vCPUs, in this time.

    It takes longer until each has completed a round: in a smoke run beside other tests that is
    longer than a moment.
    """
    before, began = _rounds(guests), time.monotonic()
    time.sleep(length_s)
    until(lambda: all(n > before[name] for name, n in _rounds(guests).items()), 60, "a round")
    took_s = time.monotonic() - began
    return {name: (n - before[name]) / took_s for name, n in _rounds(guests).items()}


def _by_type(agent: Agent, guests: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """CPU seconds of each guest by core type, as the agent exports them."""
    names = {guest.spec.name: name for name, guest in guests.items()}
    found: dict[str, dict[str, float]] = {name: {"slow": 0.0, "fast": 0.0} for name in guests}
    for metric, labels, value in agent.metrics():
        if metric == "amp_vcpu_cpu_seconds_total" and labels["domain"] in names:
            found[names[labels["domain"]]][labels["core_type"]] += value
    return found


def watch(
    agent: Agent,
    guests: Mapping[str, Any],
    length_s: float,
    slow: Mapping[str, float],
    fast: Mapping[str, float],
) -> dict[str, Progress]:
    """Watch guests for a while.

    ``slow``, ``fast``: rounds a second of each alone on that core. The kernel says how much CPU
    time they got; the agent only says which part of it was on the fast core.
    """
    types, cpu_s, rounds = _by_type(agent, guests), _cpu_s(guests), _rounds(guests)
    began = time.monotonic()
    time.sleep(length_s)
    took_s = time.monotonic() - began
    cpu_after, rounds_after = _cpu_s(guests), _rounds(guests)
    types_after = _by_type(agent, guests)
    found = {}
    for name in guests:
        parts = {t: types_after[name][t] - types[name][t] for t in ("slow", "fast")}
        total = sum(parts.values())
        on_fast = parts["fast"] / total if total else 0.0
        worth = 1.0 + on_fast * (fast[name] / slow[name] - 1.0)
        found[name] = Progress(
            (cpu_after[name] - cpu_s[name]) / took_s * worth,
            (rounds_after[name] - rounds[name]) / took_s / slow[name],
        )
    return found
