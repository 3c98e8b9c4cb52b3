"""``KEY=VALUE`` on the command line."""

from collections.abc import Iterable

from amp_nova.exceptions import ConfigInvalid


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """The values by key; raises ``ConfigInvalid``, which names the ``option``."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigInvalid(f"{option} '{text}' is not allowed: write KEY=VALUE")
        if key in found:
            raise ConfigInvalid(f"{option} {key} is given twice: remove one")
        found[key] = value
    return found
