"""The fast loop: keeps bookings of instructions per second, many times between two cycles.

Of every vCPU that it governs it reads a few counters, asks a controller (``core.ips``), and writes
the limit if that is another one now. Which vCPUs those are, and where they run, is the cycle's.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from amp_nova.core import ips
from amp_nova.core.capacity import Bandwidth
from amp_nova.core.ips import State, Terms, Work
from amp_nova.core.observation import Sample, VcpuKey
from amp_nova.ports import FastPort

LOG = logging.getLogger(__name__)
GAP_MAX_S = 1.0
"""After a longer time without a look nothing is made of what happened in it: the loop hung, the
machine slept, or a clock jumped."""


@dataclass(frozen=True, slots=True)
class Governed:
    """One vCPU as the cycle hands it over: its booking, the limit in force, and where it runs.

    ``place`` names its core type, where it is kept on one, ``nominal_ips`` are those of that type.
    """

    terms: Terms
    limit: Bandwidth
    place: str | None = None
    nominal_ips: float | None = None


@dataclass(frozen=True, slots=True)
class _Vcpu:
    """What the loop remembers of one vCPU."""

    governed: Governed
    state: State
    sample: Sample | None = None


def work(before: Sample, after: Sample) -> Work | None:
    """The difference of two samples; ``None`` when it tells nothing.

    That is when counters began anew, a clock went back, or too long a time has passed.
    """
    wall_s = (after.time_ns - before.time_ns) / 1e9
    ran_ns, waited_ns = after.run_ns - before.run_ns, after.wait_ns - before.wait_ns
    instructions = after.instructions - before.instructions
    if not 0.0 < wall_s <= GAP_MAX_S or ran_ns < 0 or waited_ns < 0 or instructions < 0:
        return None
    return Work(wall_s, ran_ns / 1e9, waited_ns / 1e9, float(instructions))


class FastLoop:
    """Governs the limits of vCPUs that book Ips. One thread runs it and the cycles."""

    def __init__(self, port: FastPort, controller: str = "default", sp_s: float = 0.1) -> None:
        self._port = port
        self._control = ips.CONTROLLERS[controller]
        self._vcpus: dict[VcpuKey, _Vcpu] = {}
        self.sp_s = sp_s
        self.tick_s = sp_s / ips.TICKS
        """Time between two looks."""
        self.writes = 0
        self.failed: Counter[str] = Counter()

    @property
    def governs(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._vcpus)

    def limit(self, key: VcpuKey) -> Bandwidth | None:
        """The limit in force of a vCPU that it governs, as far as it knows."""
        known = self._vcpus.get(key)
        return known.governed.limit if known else None

    def govern(self, vcpus: Mapping[VcpuKey, Governed]) -> None:
        """Govern these vCPUs from now on and no others.

        Limits that are not what was written last were changed by the cycle, or by somebody else.
        """
        new = vcpus.keys() - self._vcpus.keys()
        self._vcpus = {key: self._handed(key, now) for key, now in vcpus.items()}
        for key, sample in (self._port.sample(new) if new else {}).items():
            self._vcpus[key] = replace(self._vcpus[key], sample=sample)

    def _handed(self, key: VcpuKey, now: Governed) -> _Vcpu:
        known = self._vcpus.get(key)
        share = min(1.0, now.limit.cores)
        if known is None:
            return _Vcpu(now, State(share, rho=now.nominal_ips))
        if known.governed == now:
            return known
        state, before = known.state, known.governed
        if before.limit != now.limit:
            state = replace(state, share=share, held_s=0.0)
        if before.place != now.place:
            state = ips.moved(state, before.terms, before.nominal_ips, now.nominal_ips)
        return _Vcpu(now, state, known.sample)

    def tick(self) -> None:
        """Look at every vCPU once, and write the limits that have to change."""
        samples = self._port.sample(self._vcpus.keys())
        wanted: dict[VcpuKey, Bandwidth] = {}
        for key, vcpu in self._vcpus.items():
            looked = self._look(vcpu, samples.get(key))
            self._vcpus[key] = looked
            limit = ips.limit(looked.state.share)
            if looked.state.share != vcpu.state.share and limit != vcpu.governed.limit:
                wanted[key] = limit
        if not wanted:
            return
        failures = self._port.throttle(wanted)
        self.writes += len(wanted) - len(failures)
        self.failed.update(failure.reason for failure in failures.values())
        for key, limit in wanted.items():
            self._vcpus[key] = self._written(self._vcpus[key], limit, failed=key in failures)

    def _look(self, vcpu: _Vcpu, sample: Sample | None) -> _Vcpu:
        if sample is None:  # it went, or cannot be read just now
            return replace(vcpu, sample=None)
        done = work(vcpu.sample, sample) if vcpu.sample is not None else None
        if done is None:
            return replace(vcpu, sample=sample)
        state = self._control(vcpu.state, vcpu.governed.terms, done)
        return _Vcpu(vcpu.governed, state, sample)

    def _written(self, vcpu: _Vcpu, limit: Bandwidth, *, failed: bool) -> _Vcpu:
        """What holds after a write: the limit, as fine as the kernel takes it, or the old one."""
        if failed:
            limit = vcpu.governed.limit
        state = replace(vcpu.state, share=min(1.0, limit.cores))
        return replace(vcpu, governed=replace(vcpu.governed, limit=limit), state=state)
