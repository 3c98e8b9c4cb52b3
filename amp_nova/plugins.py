"""Everything that is found by entry point, which is how others ship more of it."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from stevedore.extension import ExtensionManager

from amp_nova.exceptions import ConfigInvalid, PolicyNotFound
from amp_nova.policies.api import Policy

POLICIES = "amp_nova.policies"


@functools.cache
def _installed() -> Mapping[str, Any]:
    """What makes each policy, by name; for one that cannot be imported, the error why not.

    One broken policy hides no other.
    """
    found: dict[str, Any] = {}

    def broken(_manager: object, entry_point: Any, exc: BaseException) -> None:
        found[entry_point.name] = exc

    manager: ExtensionManager[Any] = ExtensionManager(POLICIES, on_load_failure_callback=broken)
    return {**found, **{extension.name: extension.plugin for extension in manager}}


def policies() -> tuple[str, ...]:
    """Names of the installed best-effort policies."""
    return tuple(sorted(_installed()))


def load_policy(name: str, /, **params: object) -> Policy:
    """The policy of that name; ``params`` are its dataclass fields, as values or as text.

    ``PolicyNotFound`` when there is none, ``ConfigInvalid`` when a parameter is not its own.
    """
    made = _installed().get(name)
    if made is None:
        raise PolicyNotFound(f"no policy '{name}' is installed; known: {', '.join(policies())}")
    if isinstance(made, BaseException):
        raise PolicyNotFound(f"policy '{name}' cannot be loaded: {made}") from made
    fields = dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()
    types = {f.name: f.type for f in fields if f.init and f.name != "name"}
    given = {key: _value(name, key, value, types) for key, value in params.items()}
    try:
        policy: Policy = made(**given)
    except ValueError as exc:
        raise ConfigInvalid(f"policy '{name}': {exc}") from exc
    return policy


def _value(name: str, key: str, value: object, types: Mapping[str, Any]) -> object:
    """One parameter, read from text by the type of its field."""
    if key not in types:
        known = f"it has {', '.join(types)}" if types else "it has none"
        raise ConfigInvalid(f"policy '{name}' has no parameter '{key}': {known}")
    if not isinstance(value, str):
        return value
    kind = getattr(types[key], "__name__", str(types[key]))
    readers: Mapping[str, Any] = {"int": int, "float": float, "bool": _switch}
    try:
        return readers.get(kind, str)(value)
    except ValueError:
        raise ConfigInvalid(f"{key}={value!r} is no {kind} for policy '{name}'") from None


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"
