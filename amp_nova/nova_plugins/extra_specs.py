# SPDX-License-Identifier: Apache-2.0
"""The validator of ``amp:*`` extra specs for Nova's API.

Nova validates each key and value on its own when it is set. Keys that exclude each other, and vCPUs
that the flavor does not have, are found by ``amp-nova flavor check``, the filter and the agent.
"""

from nova import exception
from nova.api.validation.extra_specs import base

from amp_nova.flavor.extra_specs import NAMESPACE, fault


class Validator(base.ExtraSpecValidator):  # type: ignore[misc]
    """Validates a key and its value by the table of the grammar, with the messages of the table."""

    def validate(self, name: str, value: str) -> None:
        """Raise ``ValidationError`` if it is not allowed; Nova then answers 400."""
        if (message := fault(name, value)) is not None:
            raise exception.ValidationError(message)


def register() -> list[Validator]:
    """One validator for all keys of the namespace: the table knows which there are."""
    return [
        Validator(
            name=f"{NAMESPACE}:{{key}}",
            description="What an instance books, and how it is scheduled.",
            value={"type": str, "description": "What the grammar allows for this key."},
            parameters=[{"name": "key", "pattern": ".*", "description": "A key of the grammar."}],
        )
    ]
