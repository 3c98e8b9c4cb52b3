"""The fast loop's way to vCPUs, but for instances that somebody has just taken in hand.

``amp-nova pause`` and ``release`` work between two cycles, and so does the fast loop: it would undo
what they do. So every write asks for the lock that they hold meanwhile, and looks at the holds.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager

from amp_nova.exceptions import ConfigInvalid
from amp_nova.model.allocation import Failure
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Sample, VcpuKey
from amp_nova.ports import FastPort


class Unheld:
    """A ``FastPort`` over another one."""

    def __init__(
        self,
        port: FastPort,
        held: Callable[[], Mapping[str, str]],
        lock: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """``lock`` raises ``ConfigInvalid`` while another process has it."""
        self._port = port
        self._held = held
        self._lock = lock

    def sample(self, keys: Collection[VcpuKey]) -> Mapping[VcpuKey, Sample]:
        """Counters of these vCPUs now."""
        return self._port.sample(keys)

    def throttle(self, limits: Mapping[VcpuKey, Bandwidth]) -> Mapping[VcpuKey, Failure]:
        """Write limits of instances that nobody holds; the others fail, to be tried again."""
        try:
            with self._lock():
                held = self._held()
                free = {key: limit for key, limit in limits.items() if key[0] not in held}
                failures = dict(self._port.throttle(free))
        except ConfigInvalid:
            return {key: Failure("held", "another command changes limits") for key in limits}
        for key in limits.keys() - free.keys():
            failures[key] = Failure("held", held[key[0]])
        return failures
