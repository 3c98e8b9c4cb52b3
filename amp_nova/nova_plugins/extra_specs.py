# SPDX-License-Identifier: Apache-2.0
"""Validators of ``amp:*`` extra specs for Nova's API, generated from the table of the grammar.

Nova validates each key and value on its own when it is set. Keys that exclude each other, and vCPUs
that the flavor does not have, are found by ``amp-nova flavor check``, the filter and the agent.
"""

import re

from nova import exception
from nova.api.validation.extra_specs import base

from amp_nova.flavor.extra_specs import NAMESPACE, TABLE, VCPU_INDEX, ExtraSpec, fault


class Validator(base.ExtraSpecValidator):  # type: ignore[misc]
    """Validates one key of the table, with the messages of the table."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Nova uses the name as a regular expression; the dots in ours are literal.
        literal = re.escape(self.name)
        for parameter in self.parameters:
            group = f"(?P<{parameter['name']}>{parameter['pattern']})"
            literal = literal.replace(re.escape(f"{{{parameter['name']}}}"), group)
        self.name_regex = literal.replace("\\:", ":")

    def validate(self, name: str, value: str) -> None:
        """Raise ``ValidationError`` if the value is not allowed; Nova then answers 400."""
        if (message := fault(name, value)) is not None:
            raise exception.ValidationError(message)


def _validator(spec: ExtraSpec, *, per_vcpu: bool) -> Validator:
    index = {"name": "vcpu", "pattern": VCPU_INDEX, "description": "The vCPU, counted from 0."}
    return Validator(
        name=f"{NAMESPACE}:{spec.name}" + (".{vcpu}" if per_vcpu else ""),
        description=f"{spec.meaning[0].upper()}{spec.meaning[1:]}"
        + (", for this vCPU only." if per_vcpu else "."),
        value={"type": str, "description": f"{spec.allowed[0].upper()}{spec.allowed[1:]}."},
        parameters=[index] if per_vcpu else [],
    )


def register() -> list[Validator]:
    """A validator for every key, and a last one that rejects all other keys of the namespace."""
    validators = [_validator(spec, per_vcpu=False) for spec in TABLE]
    validators += [_validator(spec, per_vcpu=True) for spec in TABLE if spec.per_vcpu]
    unknown = {"name": "unknown", "pattern": ".*", "description": "Any other key."}
    validators.append(
        Validator(
            name=f"{NAMESPACE}:{{unknown}}",
            description="Not a key of amp-nova; rejected with the most similar key.",
            value={"type": str, "description": "No value is allowed."},
            parameters=[unknown],
        )
    )
    return validators
