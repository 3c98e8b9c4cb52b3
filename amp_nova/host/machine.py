# SPDX-License-Identifier: Apache-2.0
"""The topology of this machine: from its facts, the configuration and the calibration.

It is kept up to date as CPUs go online and offline.
"""

import logging
import os
from collections.abc import Callable

from oslo_config import cfg

from amp_nova.exceptions import AmpError, CalibrationInvalid, ConfigInvalid
from amp_nova.hardware import operator_types, siblings
from amp_nova.hardware.detect import classify
from amp_nova.host.calibration import provenance
from amp_nova.host.sysfs import read_facts
from amp_nova.model import cpulist
from amp_nova.model.topology import Topology
from amp_nova.private_files import check_trusted

LOG = logging.getLogger(__name__)


def load_topology(conf: cfg.ConfigOpts) -> Topology:
    """The core types of the machine under ``[topology] root``.

    Raises ``TopologyUnknown`` if they cannot be determined, ``ConfigInvalid`` if the configuration
    does not match the machine, and ``CalibrationInvalid`` if the calibration file cannot be read,
    or others can change it.
    """
    options = conf.topology
    lines = [operator_types.parse(line) for line in options.core_type]
    topology = classify(read_facts(options.root), lines, options.reference)
    if options.calibration_file and os.path.exists(options.calibration_file):
        try:  # it decides what guests receive
            check_trusted(options.calibration_file)
        except (OSError, ValueError) as exc:
            raise CalibrationInvalid(f"the calibration is not used: {exc}") from exc
        topology = provenance.apply(topology, options.calibration_file, options.root)
    topology = siblings.with_factors(topology, lines)
    _check_reference(topology)
    return topology


def _check_reference(topology: Topology) -> None:
    """Refuse a reference core of another machine without coefficients relative to it.

    If pCPUs are offline, the reference core may be one of them: then a warning in the topology
    names the missing coefficient, and the agent continues.
    """
    here = [t.name for t in topology.core_types]
    unknown = [t.name for t in topology.core_types if t.coefficient is None]
    may_be_offline = len(here) == 1 and topology.offline
    if topology.reference not in here and unknown and not may_be_offline:
        raise ConfigInvalid(
            f"[topology] reference '{topology.reference}' is not a core type of this host (it has "
            f"{', '.join(here)}) and nothing gives the coefficient of {', '.join(unknown)} "
            "relative to it; run 'amp-nova calibrate --reference FILE' or name a type of this host"
        )


class OnlineTopology:
    """The pCPUs that are online now; those of an unknown core type are left out."""

    def __init__(
        self, load: Callable[[], Topology], online_now: Callable[[], frozenset[int]]
    ) -> None:
        """``load`` reads the machine again; ``online_now`` returns the CPUs that are online."""
        self._load, self._online_now = load, online_now
        self._online = online_now()
        self.topology = load()
        self._incomplete = self.topology.incomplete

    def follow(self, retry: bool) -> bool:
        """Update the topology; returns whether it may have changed.

        ``retry``: detect core types again if that has failed, or files were missing.
        """
        online = self._online_now() or self._online  # an empty list means that it cannot be read
        if online == self._online and not (self._incomplete and retry):
            return False
        now = self.topology.with_online(online) if online != self._online else None
        self._incomplete = False
        if now is None:
            try:
                now = self._load()
                self._incomplete = now.incomplete
            except AmpError as exc:
                if online != self._online:
                    LOG.error("CPUs came online whose core types cannot be determined: %s", exc)
                self._incomplete = True
                pcpus = {p.id for p in self.topology.known or self.topology.pcpus}
                now = self.topology.with_online(online & pcpus) or self.topology
        if online == self._online and now == self.topology:
            return False
        if online != self._online:
            LOG.info("CPUs went on- or offline; online now: %s", cpulist.show(online))
        self.topology, self._online = now, online
        return True
