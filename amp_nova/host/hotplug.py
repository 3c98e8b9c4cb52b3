"""Keeps the topology up to date as CPUs go online and offline."""

import logging
from collections.abc import Callable

from amp_nova.exceptions import AmpError
from amp_nova.model import cpulist
from amp_nova.model.topology import Topology

LOG = logging.getLogger(__name__)


class OnlineTopology:
    """The pCPUs that are online now; those of an unknown core type are left out."""

    def __init__(
        self, load: Callable[[], Topology], online_now: Callable[[], frozenset[int]]
    ) -> None:
        """``load`` reads the machine again; ``online_now`` returns the CPUs that are online."""
        self._load, self._online_now = load, online_now
        self._online = online_now()
        self._incomplete = False
        self.topology = load()

    def follow(self, retry: bool) -> bool:
        """Update the topology; returns whether it may have changed.

        ``retry``: detect core types again if that has failed.
        """
        online = self._online_now() or self._online  # an empty answer means it cannot be read
        if online == self._online and not (self._incomplete and retry):
            return False
        now = self.topology.with_online(online)
        self._incomplete = False
        if now is None:
            try:
                now = self._load()
            except AmpError as exc:
                if online != self._online:
                    LOG.error("CPUs came online whose core types cannot be determined: %s", exc)
                self._incomplete = True
                known = {p.id for p in self.topology.known or self.topology.pcpus}
                now = self.topology.with_online(online & known) or self.topology
        if online != self._online:
            LOG.info("CPUs went on- or offline; online now: %s", cpulist.show(online))
        self.topology, self._online = now, online
        return True
