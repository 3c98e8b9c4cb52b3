"""Options of ``[agent]`` in a scenario: names, values and errors as in the configuration."""

from collections.abc import Mapping

import yaml

from amp_nova import conf as conf_
from amp_nova.agent import settings
from amp_nova.agent.loop import Settings
from amp_nova.cmd.arguments import nearest
from amp_nova.conf.agent import GROUP, OPTS
from amp_nova.exceptions import ConfigInvalid
from amp_nova.sim.scenarios.document import Value

ELSEWHERE = {
    "policy": "give the policy beside 'agent', at the top of the scenario",
    "policy_parameter": "give parameters of the policy with --set",
}
"""Options that a scenario gives elsewhere."""


def read(given: Mapping[str, Value]) -> Settings:
    """The loop's settings; ``ScenarioInvalid`` names the place of an invalid option.

    Options that only concern a real host are checked, and have no effect.
    """
    known = {opt.name: opt for opt in OPTS}
    conf = conf_.load(files=[])
    for name, value in given.items():
        if name in ELSEWHERE:
            raise value.wrong(f"agent.{name} is not read in a scenario: {ELSEWHERE[name]}")
        if name not in known:
            hint = nearest(name, known) or ": see the sample configuration"
            raise value.wrong(f"'{name}' is not an option of [agent]{hint}")
        if not value.is_null:
            try:
                conf.set_override(name, _text(value, multiple=known[name].multi), GROUP)
            except (ConfigInvalid, ValueError) as exc:
                raise value.wrong(str(exc)) from exc
    try:
        return settings.read(conf)
    except ConfigInvalid as exc:  # an option whose value is checked when it is used
        raise next(iter(given.values())).wrong(str(exc)) from exc


def _text(value: Value, *, multiple: bool) -> str | list[str]:
    """The value as it is written in a configuration file."""
    if multiple and isinstance(value.node, yaml.SequenceNode):
        return [item.raw() for item in value.items()]
    return [value.raw()] if multiple else value.raw()
