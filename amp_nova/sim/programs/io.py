"""A vCPU that transfers data: it computes on some bytes while others are on the line.

Of every batch of bytes one part is pipelined: computing and the line run side by side, and the
slower one decides. The other part is computed on and then transferred. With ``a`` seconds per byte
on the line, ``b`` seconds of computing, and a pipelined part ``o``, a byte takes
``o max(a, b) + (1 - o) (a + b) = max(a, b) + (1 - o) min(a, b)``.
"""

from collections.abc import Sequence

from amp_nova.sim.scenarios.programs import Io
from amp_nova.sim.scenarios.turns import CYCLE_S
from amp_nova.sim.vcpu import SimVcpu


class Transfers:
    """What one vCPU transfers, batch by batch."""

    together = spins = False

    def __init__(self, io: Io) -> None:
        # So many bytes that computing and the line take one cycle, one after the other.
        batch_bytes = CYCLE_S / (io.work_ref_s_per_byte + 1.0 / io.line_bytes_s)
        work_ref_s, line_s = batch_bytes * io.work_ref_s_per_byte, batch_bytes / io.line_bytes_s
        ratios = ((io.overlap_ratio, True), (1.0 - io.overlap_ratio, False))
        self._parts = [(work_ref_s * r, line_s * r, overlaps) for r, overlaps in ratios if r > 0.0]
        """Work, seconds on the line, and whether they overlap, of the parts of a batch."""
        self._part = 0
        self._began_s = 0.0

    def begin(self, vcpu: SimVcpu, now_s: float) -> None:
        """Compute on the present part of a batch."""
        self._began_s = now_s
        vcpu.work.waits_until_s = None
        vcpu.work.target_ref_s = vcpu.work.progress_ref_s + self._parts[self._part][0]

    def reached(self, vcpu: SimVcpu, now_s: float) -> Sequence[SimVcpu]:
        """It has computed on a part, or the line is free again."""
        if vcpu.work.waits_until_s is None:
            vcpu.work.progress_ref_s = vcpu.work.target_ref_s
            _, line_s, overlaps = self._parts[self._part]
            free_s = (self._began_s if overlaps else now_s) + line_s
            if free_s > now_s:
                vcpu.work.waits_until_s = free_s
                return [vcpu]
        self._part = (self._part + 1) % len(self._parts)
        self.begin(vcpu, now_s)
        return [vcpu]
