# SPDX-License-Identifier: Apache-2.0
"""What a host says of its speed counts for hosts of its own CPU model, and within bounds."""

import json
import re

COEFFICIENT_MIN, COEFFICIENT_MAX = 0.1, 10.0
"""More than any two cores of one cloud differ."""


def cpu_model(cpuinfo):
    """The model in a text of ``/proc/cpuinfo``, as a calibration names it."""

    def info(key):
        found = set(re.findall(rf"(?m)^{key}\s*: *(.*?) *$", cpuinfo)) - {""}
        return " + ".join(sorted(found))

    arm = " ".join(filter(None, map(info, ("CPU implementer", "CPU part"))))
    # Ansible before 2.19 takes braces in a fact for a template.
    return re.sub("[{}]", "", info("model name") or info("cpu") or arm)


def of_model(kept, model):
    """The part of a calibration file that is of this CPU model; empty if there is none."""
    document = json.loads(kept or '{"calibrations": []}')
    own = [c for c in document["calibrations"] if c["provenance"]["cpu_model"] == model]
    return _text({**document, "calibrations": own}) if own else ""


def with_measured(kept, measured, model):
    """``kept``, in which what a host of this CPU model measured replaces what it had of that."""
    own = of_model(measured, model)
    if not own:
        raise ValueError(f"the host has no calibration of its CPU model, {model!r}")
    document = json.loads(own)
    for core_type in document["calibrations"][0]["core_types"]:
        found = [core_type["coefficient"][name] for name in ("low", "value", "high")]
        if not COEFFICIENT_MIN <= found[0] <= found[1] <= found[2] <= COEFFICIENT_MAX:
            raise ValueError(
                f"the host measured a coefficient of {found[1]!r} ({found[0]!r} to {found[2]!r}),"
                f" and {COEFFICIENT_MIN:g} to {COEFFICIENT_MAX:g} is possible: calibrate it again"
            )
    before = json.loads(kept or own)
    if before["schema"] != document["schema"]:  # of an older amp-nova
        before["calibrations"] = []
    others = [c for c in before["calibrations"] if c["provenance"]["cpu_model"] != model]
    return _text({**document, "calibrations": [*others, document["calibrations"][0]]})


def _text(document):
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


class FilterModule:
    """What Ansible looks for."""

    def filters(self):
        """The filters by name."""
        return {
            "amp_nova_cpu_model": cpu_model,
            "amp_nova_of_model": of_model,
            "amp_nova_with_measured": with_measured,
        }
