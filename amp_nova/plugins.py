# SPDX-License-Identifier: Apache-2.0
"""Loads best-effort policies, and what counts emulated guests, by entry point.

So other packages can provide more, and the laboratory is loaded where it is installed.
"""

import dataclasses
import difflib
import functools
from collections.abc import Mapping
from typing import Any

from stevedore.named import NamedExtensionManager

from amp_nova.exceptions import ConfigInvalid, CountersNever, without_lab
from amp_nova.policies.api import Policy

POLICIES, COUNTERS = "amp_nova.policies", "amp_nova.counters"


@functools.cache
def _factory(name: str, namespace: str = POLICIES) -> Any:
    """What makes it; the exception if it fails to import, ``None`` if it is not installed."""
    failures: list[Any] = []

    def broken(_manager: object, _entry_point: object, exc: BaseException) -> None:
        failures.append(exc)

    def missing(_names: object) -> None:
        """Say nothing: for no callback, older releases of stevedore log a warning."""

    manager: NamedExtensionManager[Any] = NamedExtensionManager(
        namespace, [name], on_load_failure_callback=broken, on_missing_entrypoints_callback=missing
    )
    return next((extension.plugin for extension in manager), failures[0] if failures else None)


def emulated_counter() -> Any:
    """The class that counts the instructions of emulated guests; raises ``CountersNever``."""
    counter = _factory("tcg", COUNTERS)
    if counter is None or isinstance(counter, BaseException):
        why = without_lab(counter) or counter or "no package provides it"
        raise CountersNever(f"the guest is emulated, and its counter cannot be loaded: {why}")
    return counter


def policies() -> tuple[str, ...]:
    """Names of the installed best-effort policies, of which none is imported."""
    none: NamedExtensionManager[Any] = NamedExtensionManager(POLICIES, [])
    return tuple(sorted(entry_point.name for entry_point in none.list_entry_points()))


def load_policy(name: str, /, **params: object) -> Policy:
    """Load the policy with that name; ``params`` set its dataclass fields, as values or as text.

    Raises ``ConfigInvalid`` if no such policy is installed, if it cannot be imported, or if it has
    no such parameter or does not allow the value.
    """
    factory = _factory(name)
    if factory is None:
        near = difflib.get_close_matches(name, policies(), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ConfigInvalid(
            f"no policy '{name}' is installed; choose one of {', '.join(policies())}{hint}"
        )
    if isinstance(factory, BaseException):
        why = without_lab(factory) or factory
        raise ConfigInvalid(f"policy '{name}' cannot be loaded: {why}") from factory
    return make_policy(factory, name, params)


def make_policy(factory: Any, name: str, params: Mapping[str, object]) -> Policy:
    """The policy that a dataclass makes; raises ``ConfigInvalid`` as ``load_policy`` does."""
    fields = dataclasses.fields(factory) if dataclasses.is_dataclass(factory) else ()
    types = {f.name: f.type for f in fields if f.init and f.name != "name"}
    values = {key: _value(name, key, value, types) for key, value in params.items()}
    try:
        policy: Policy = factory(**values)
    except ValueError as exc:
        raise ConfigInvalid(f"policy '{name}': {exc}") from exc
    return policy


def _value(name: str, key: str, value: object, types: Mapping[str, Any]) -> object:
    """The value of one parameter; text is parsed as the type of the field."""
    if key not in types:
        parameters = f"it has {', '.join(types)}" if types else "it has none"
        raise ConfigInvalid(f"policy '{name}' has no parameter '{key}': {parameters}")
    if not isinstance(value, str):
        return value
    kind = getattr(types[key], "__name__", str(types[key]))
    parsers: Mapping[str, Any] = {
        "int": int,
        "float": float,
        "bool": lambda text: {"true": True, "false": False}[text.lower()],
    }
    try:
        return parsers.get(kind, str)(value)
    except (KeyError, ValueError):
        raise ConfigInvalid(f"{key}={value!r} is not of type {kind} for policy '{name}'") from None
