# SPDX-License-Identifier: Apache-2.0
"""The errors that amp-nova raises on purpose.

Users see the message as it is: one sentence that names the offending value and the remedy.
``host/`` translates ``libvirtError`` and ``OSError`` into these.
"""

import re

SENTENCE_MAX = 1500
_HEAD, _TAIL = 1100, 300
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def sentence(text: str) -> str:
    """Return a message as one line of bounded length, whatever values it quotes.

    Control characters are escaped, so that they reach neither a terminal nor a log. A long message
    keeps its beginning and its end: they say what is wrong and what to do.
    """
    text = text.replace("\n", " ")
    text = _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return text if len(text) <= SENTENCE_MAX else f"{text[:_HEAD]} [...] {text[-_TAIL:]}"


class AmpError(Exception):
    """Base class of the errors below. ``step``: what to do next, if the message does not say."""

    step = ""

    def __init__(self, message: object = "") -> None:
        super().__init__(sentence(str(message)))

    @property
    def advised(self) -> str:
        """The message followed by the next step, for the user of a command."""
        return f"{self}; {self.step}" if self.step else str(self)


class AnswerIsNo(AmpError):
    """The answer of a command is "no", for which its exit status is 1."""


class BookingInvalid(AmpError):
    """The ``amp:*`` extra specs of a flavor are invalid."""


class TopologyUnknown(AmpError):
    """The core types of a machine cannot be determined."""


class ConfigInvalid(AmpError):
    """A configuration value is invalid."""


class Locked(ConfigInvalid):
    """A lock is held by another process, which the message names."""


class CalibrationInvalid(AmpError):
    """A calibration failed, cannot be read, or belongs to another machine."""


class InvalidPlan(AmpError):
    """A policy returned a plan that must not be carried out."""


class CountersUnavailable(AmpError):
    """A vCPU's instructions cannot be counted at the moment; a retry may succeed."""


class CountersNever(CountersUnavailable):
    """A vCPU's instructions cannot be counted while its QEMU process lives; do not retry."""


class ActuationFailed(AmpError):
    """A domain could not be changed in this cycle."""


class HypervisorUnavailable(AmpError):
    """The hypervisor does not respond in this cycle."""

    step = "start libvirt, or name its address in [agent] libvirt_uri"


def without_lab(exc: object) -> str:
    """How to get the simulator, if an import failed because it is not installed; else empty."""
    if not (isinstance(exc, ModuleNotFoundError) and exc.name == "amp_nova_lab"):
        return ""
    return "it is part of the simulator, which is not installed: install python3-amp-nova-lab"


class ReportInvalid(AmpError):
    """A host report was rejected; ``kind`` is the label it is counted under."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"host report rejected ({kind}): {reason}")
        self.kind = kind
