# SPDX-License-Identifier: Apache-2.0
"""Runs a policy over the fake host of ``tests.support.hosts`` without the rest of the loop."""

from dataclasses import dataclass, field

from amp_nova.agent.state import instances, policy_runner
from amp_nova.agent.state.policy_runner import PolicySettings, PolicyState
from amp_nova.control.context import Context, Terms
from amp_nova.control.entitlement import entitle
from amp_nova.control.homes import pack
from amp_nova.model.allocation import of_host
from amp_nova.policies.api import VcpuView


@dataclass
class Answer:
    """A FAKE policy that gives one answer, or raises it, and remembers what it was shown."""

    answer: object = None
    views: list = field(default_factory=list)
    name: str = "answer"

    def decide(self, view):
        self.views.append(view)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return {} if self.answer is None else self.answer


class Runner:
    """A policy as the loop runs it: its state is carried from cycle to cycle."""

    def __init__(self, policy, interval_s, **settings):
        self.settings = PolicySettings(interval_s, **settings)
        self.state = PolicyState(policy)

    def entitlements(self, host, excluded=()):
        """What all vCPUs are entitled to after this cycle."""
        seen = host.observe()
        read = instances.read({}, seen)
        paused = dict.fromkeys(excluded, "paused")
        here = instances.on_host(read, of_host(seen.domains), dict.fromkeys(read), paused, {})
        context = Context(seen.topology, Terms(), pack(here, seen.topology, Terms(), {}))
        found = entitle(here, context)
        weights = {i.resource: i.booking.weight for i in here}
        before = self.state
        none = frozenset()
        self.state = policy_runner.decide(
            before,
            self.settings,
            seen,
            found,
            lambda key, _topology: VcpuView(key, none, none, weights[key[0]]),
        )
        placed = policy_runner.with_places(found, self.state.places, self.state.policy.name)
        return policy_runner.let_go(placed, before, self.state)

    def cycle(self, host, **rest):
        """The vCPUs that a policy placed, or let go, in this cycle."""
        found = self.entitlements(host, **rest).values()
        return [e for e in found if e.governed_by == "policy"]
