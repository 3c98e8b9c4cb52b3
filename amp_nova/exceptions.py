"""The errors that amp-nova raises on purpose.

Users see the message as it is: one sentence that names the offending value and the remedy.
``host/`` translates ``libvirtError`` and ``OSError`` into these.
"""


class AmpError(Exception):
    """Base class of the errors below."""


class BookingInvalid(AmpError):
    """The ``amp:*`` extra specs of a flavor are invalid."""


class TopologyUnknown(AmpError):
    """The core types of a machine cannot be determined."""


class ConfigInvalid(AmpError):
    """A configuration value is invalid."""


class CalibrationInvalid(AmpError):
    """A calibration failed, cannot be read, or belongs to another machine."""


class PolicyNotFound(AmpError):
    """No best-effort policy of that name is installed."""


class InvalidPlan(AmpError):
    """A policy returned a plan that must not be carried out."""


class CountersUnavailable(AmpError):
    """A vCPU's instructions cannot be counted at the moment."""


class CountersNever(CountersUnavailable):
    """A vCPU cannot be counted while its process lives; retrying does not help."""


class ActuationFailed(AmpError):
    """A domain could not be changed in this cycle."""


class HypervisorUnavailable(AmpError):
    """The hypervisor does not respond in this cycle."""


class ScenarioInvalid(AmpError):
    """The simulator cannot run this scenario file."""


class ReportInvalid(AmpError):
    """A host report was rejected; ``kind`` is the label it is counted under."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"host report rejected ({kind}): {reason}")
        self.kind = kind
