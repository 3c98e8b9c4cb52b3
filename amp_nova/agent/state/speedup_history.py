"""What instances taught about the cost of cache misses on this host, kept for the next agent.

An agent that starts reads everything else back from the host; this it would have to learn anew from
vCPUs that move. The file is beside the holds: it does not outlive the machine's next start, and
counts only as long as core types are what they were.
"""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import CoreType
from amp_nova.profiling.speedup import MissSample

LOG = logging.getLogger(__name__)
KEEP_S = 60.0
"""Least time between two writes."""


class SpeedupHistory:
    """The file of samples. ``clock`` gives monotonic seconds."""

    def __init__(self, state_path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = state_path / "lessons.json"
        self._clock = clock
        self._kept: Mapping[VcpuKey, MissSample] = {}
        self._kept_s: float | None = None
        self._failed = False

    def recall(self, core_types: Sequence[CoreType]) -> dict[VcpuKey, MissSample]:
        """Lessons of an earlier agent about these core types; none if there are none to be read."""
        try:
            content = json.loads(self._path.read_text())
            if content["core_types"] != repr(tuple(core_types)):
                return {}
            types = len(core_types)
            found = {(str(r), int(i)): _miss_sample(v, types) for r, i, v in content["lessons"]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as exc:
            LOG.warning("%s cannot be read: %s; speedups are measured again", self._path, exc)
            return {}
        self._kept = dict(found)
        return found

    def keep(self, core_types: Sequence[CoreType], samples: Mapping[VcpuKey, MissSample]) -> None:
        """Save them if they have changed, at most once in ``KEEP_S`` seconds."""
        now_s = self._clock()
        early = self._kept_s is not None and now_s - self._kept_s < KEEP_S
        if early or not samples or samples == self._kept:
            return
        self._kept_s = now_s
        listed = [[*key, astuple(sample)] for key, sample in samples.items()]
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_text(json.dumps({"core_types": repr(tuple(core_types)), "lessons": listed}))
            os.replace(fresh, self._path)
        except OSError as exc:
            if not self._failed:
                LOG.warning("%s cannot be written: %s", self._path, exc.strerror)
            self._failed = True
            return
        self._kept = dict(samples)


def _miss_sample(values: Sequence[float], types: int) -> MissSample:
    """One sample as it was written; ``ValueError`` if it is none."""
    over, under, *cycles = values
    if not (0 <= under < over < types and len(cycles) == 2 and 0.0 < min(cycles) < math.inf):
        raise ValueError(f"{values} is not a sample of cache misses")
    return MissSample(int(over), int(under), *map(float, cycles))
