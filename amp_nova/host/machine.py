"""The topology of the machine below a root: its facts, the operator's word and the calibration."""

import os

from oslo_config import cfg

from amp_nova.exceptions import ConfigInvalid
from amp_nova.hardware import operator_types
from amp_nova.hardware.detect import classify
from amp_nova.host.sysfs.tree import read_facts
from amp_nova.model.topology import Topology


def load_topology(conf: cfg.ConfigOpts) -> Topology:
    """The core types of the machine under ``[topology] root``.

    Raises:
        TopologyUnknown: the machine does not tell its core types.
        ConfigInvalid: what is configured does not fit the machine.
        CalibrationInvalid: the calibration cannot be read or is another machine's.
    """
    options = conf.topology
    lines = [operator_types.parse(line) for line in options.core_type]
    topology = classify(read_facts(options.root), lines, options.reference)
    if options.calibration_file and os.path.exists(options.calibration_file):
        # Needed only where somebody has calibrated.
        from amp_nova.host.calibration.measure import apply

        topology = apply(topology, options.calibration_file, options.root)
    _check_reference(topology)
    return topology


def _check_reference(topology: Topology) -> None:
    """A reference core of another machine is known by the coefficients over it alone.

    Where all pCPUs of the other types are offline it may be theirs: the topology warns of what is
    missing then, and the agent goes on.
    """
    here = [t.name for t in topology.core_types]
    unknown = [t.name for t in topology.core_types if t.coefficient is None]
    may_be_offline = len(here) == 1 and topology.offline
    if topology.reference not in here and unknown and not may_be_offline:
        raise ConfigInvalid(
            f"[topology] reference '{topology.reference}' is no core type of this host (it has "
            f"{', '.join(here)}) and nothing gives the coefficient of {', '.join(unknown)} over "
            "it; run 'amp-nova calibrate --reference FILE' or name a type of this host"
        )
