# SPDX-License-Identifier: Apache-2.0
"""What commands read: scenarios with options of ``[agent]``, and the policies to run them with.

Options have names, values and errors as in the configuration.
"""

from collections.abc import Sequence
from logging import Logger
from pathlib import Path

from amp_nova import conf as conf_
from amp_nova.agent import settings
from amp_nova.agent.loop import LoopSettings
from amp_nova.cmd.arguments import nearest
from amp_nova.conf.agent import GROUP, OPTS
from amp_nova.exceptions import ConfigInvalid
from amp_nova.policies.api import Policy
from amp_nova_lab import run as simulation
from amp_nova_lab.scenarios import document, scenario
from amp_nova_lab.scenarios.document import Place
from amp_nova_lab.scenarios.scenario import AgentKeys, Scenario

ELSEWHERE = {
    "policy": "give the policy beside 'agent', at the top of the scenario",
    "policy_parameter": "give parameters of the policy with --set",
}
"""Options that a scenario gives elsewhere."""


def policies(texts: Sequence[str]) -> dict[str, Policy]:
    """The policies by ``NAME[:KEY=VALUE...]``; ``ConfigInvalid`` if one is given twice."""
    if len(set(texts)) < len(texts):
        raise ConfigInvalid(f"--policy {max(texts, key=texts.count)} is given twice: remove one")
    return {text: simulation.read_policy(text) for text in texts}


def load(path: Path) -> Scenario:
    """The scenario in a file; ``ScenarioInvalid`` names what is wrong, and the line."""
    return read(document.load(path))


def read(whole: Place) -> Scenario:
    """Like ``load``, for a file that was read."""
    return scenario.read(whole, agent_options)


def warn(log: Logger, scenario: Scenario) -> None:
    """Warn of bookings that cannot be enforced, before the scenario is simulated."""
    for sentence in simulation.not_enforced(scenario):
        log.warning("%s: %s", scenario.name, sentence)


def agent_options(options: AgentKeys, at: Place) -> LoopSettings:
    """The loop's settings; ``ScenarioInvalid`` names the place of an invalid option.

    Options that only concern a real host are checked, and have no effect.
    """
    opts = {opt.name: opt for opt in OPTS}
    conf = conf_.load(files=[])
    for name, value in options.items():
        here = at[name]
        if name in ELSEWHERE:
            raise here.wrong(f"agent.{name} is not read in a scenario: {ELSEWHERE[name]}")
        if name not in opts:
            hint = nearest(name, opts) or ": see the sample configuration"
            raise here.wrong(f"'{name}' is not an option of [agent]{hint}")
        if isinstance(value, list) and not opts[name].multi:
            raise here.refused("text")
        if opts[name].multi and not isinstance(value, list):
            value = [value]
        try:
            conf.set_override(name, value, GROUP)
        except (ConfigInvalid, ValueError) as exc:
            raise here.wrong(str(exc)) from exc
    try:
        return settings.read(conf)
    except ConfigInvalid as exc:  # an option whose value is checked when it is used
        raise at.wrong(str(exc)) from exc
