"""Validators of ``amp:*`` extra specs for Nova's API, made from the one table of the grammar.

Nova checks a key and its value when they are set, one by one: what excludes each other, or names a
vCPU that the flavor has not, is found by ``amp-nova flavor check``, the filter and the agent.
"""

import re

from nova import exception
from nova.api.validation.extra_specs import base

from amp_nova.flavor.extra_specs import NAMESPACE, TABLE, VCPU_INDEX, ExtraSpec, fault


class Validator(base.ExtraSpecValidator):  # type: ignore[misc]
    """Asks the table, whose sentences say what is allowed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Nova takes names for regular expressions; a dot in ours is a dot.
        literal = re.escape(self.name)
        for parameter in self.parameters:
            group = f"(?P<{parameter['name']}>{parameter['pattern']})"
            literal = literal.replace(re.escape(f"{{{parameter['name']}}}"), group)
        self.name_regex = literal.replace("\\:", ":")

    def validate(self, name: str, value: str) -> None:
        """Refuse what the table refuses, in its words; Nova answers 400."""
        if (sentence := fault(name, value)) is not None:
            raise exception.ValidationError(sentence)


def _validator(spec: ExtraSpec, *, per_vcpu: bool) -> Validator:
    index = {"name": "vcpu", "pattern": VCPU_INDEX, "description": "The vCPU, counted from 0."}
    return Validator(
        name=f"{NAMESPACE}:{spec.name}" + (".{vcpu}" if per_vcpu else ""),
        description=f"{spec.meaning[0].upper()}{spec.meaning[1:]}"
        + (", of this vCPU alone." if per_vcpu else "."),
        value={"type": str, "description": f"{spec.allowed[0].upper()}{spec.allowed[1:]}."},
        parameters=[index] if per_vcpu else [],
    )


def register() -> list[Validator]:
    """Every key of the grammar, and last what refuses all others of the namespace."""
    found = [_validator(spec, per_vcpu=False) for spec in TABLE]
    found += [_validator(spec, per_vcpu=True) for spec in TABLE if spec.per_vcpu]
    rest = {"name": "rest", "pattern": ".*", "description": "Anything else."}
    found.append(
        Validator(
            name=f"{NAMESPACE}:{{rest}}",
            description="No key of amp-nova: refused, with the key that was probably meant.",
            value={"type": str, "description": "None is allowed."},
            parameters=[rest],
        )
    )
    return found
