"""The rounds of a calibration: slices of every kernel on every core type, in turn."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from amp_nova.hardware import slices
from amp_nova.hardware.slices import Run, Sample, Slice
from amp_nova.host.calibration import kernels


@dataclass(frozen=True, slots=True)
class Rounds:
    """How to measure a round."""

    cores: Mapping[str, Sequence[int]]
    """The pCPU to measure of each core type, followed by its SMT siblings."""
    kernels: Sequence[str]
    seconds: float
    """Time for each kernel on each core type: wall time or, beside other work, CPU time."""
    progress: Callable[[int, float], None]
    """Told the number of the round, and the seconds that it still takes."""
    share_ratio: float | None = None
    """The share of one pCPU to use at most beside other work, ``None`` without other work."""
    shuffled: random.Random = field(default_factory=random.Random)

    def measure(self, number: int) -> list[Sample]:
        """The samples of a round."""
        types = {name: len(core) > 1 for name, core in self.cores.items()}
        taken: dict[Run, list[Slice]] = {}
        left_s = self.seconds * len(slices.runs(types, self.kernels, self.shuffled))
        # On a pCPU that others use all the time, a slice may take a second.
        while left_s > 0 or any(len(of) < 2 * slices.MIN_SLICES for of in taken.values()):
            for run in slices.runs(types, self.kernels, self.shuffled):
                found = kernels.measure(run, self.cores[run.core_type])
                taken.setdefault(run, []).append(found)
                left_s -= found.wall_s if self.share_ratio is None else found.cpu_s
                if self.share_ratio:
                    time.sleep(found.cpu_s / self.share_ratio - found.cpu_s)
            self.progress(number, max(0.0, left_s) / (self.share_ratio or 1.0))
        samples = (
            slices.fastest(number, run, self.cores[run.core_type][0], of)
            for run, of in taken.items()
        )
        return [sample for sample in samples if sample]
