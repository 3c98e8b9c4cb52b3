"""Every error amp-nova raises on purpose.

A message is one sentence that names the offending value and the remedy: it is shown to users as it
stands. ``libvirtError`` and ``OSError`` are translated at the edge (``host/``) and never leave it.
"""


class AmpError(Exception):
    """Base of all errors that amp-nova raises on purpose."""


class BookingInvalid(AmpError):
    """A set of ``amp:*`` extra specs breaks the grammar of the contract."""


class TopologyUnknown(AmpError):
    """The core types of a machine cannot be told, and are not guessed."""


class ConfigInvalid(AmpError):
    """A configuration value is not what it has to be."""


class CalibrationInvalid(AmpError):
    """A calibration could not be made, read, or does not fit the machine."""


class PolicyNotFound(AmpError):
    """No best-effort policy of that name is installed."""


class InvalidPlan(AmpError):
    """A policy returned a plan that may not be carried out."""


class CountersUnavailable(AmpError):
    """One vCPU cannot be measured now."""


class CountersNever(CountersUnavailable):
    """Nothing can count a vCPU as long as its process lives: there is no need to try again."""


class ActuationFailed(AmpError):
    """One domain could not be changed in this cycle."""


class HypervisorUnavailable(AmpError):
    """The hypervisor does not answer in this cycle."""


class ScenarioInvalid(AmpError):
    """A scenario file says something that the simulator cannot run."""


class ReportInvalid(AmpError):
    """A host report was rejected; ``kind`` is the label it is counted under."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"host report rejected ({kind}): {reason}")
        self.kind = kind
