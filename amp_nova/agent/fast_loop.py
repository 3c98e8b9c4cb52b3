"""The fast loop: keeps bookings of instructions per second, many times between two cycles.

Of every vCPU that it governs it reads a few counters, asks a controller
(``control.ips_controller``), and writes the limit if that is another one now. Which vCPUs those
are, and where they run, is the cycle's.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from amp_nova.control import ips_controller
from amp_nova.control.ips_controller import State, Terms, Work
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Sample, VcpuKey
from amp_nova.ports import FastPort

LOG = logging.getLogger(__name__)
GAP_MAX_NS = 1_000_000_000
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


@dataclass(slots=True)
class _Vcpu:
    """What the loop remembers of one vCPU: samples when its controller last acted, and last."""

    governed: Governed
    state: State
    since: Sample | None = None
    last: Sample | None = None

    def forget(self, sample: Sample | None) -> None:
        """Begin anew with this sample: what was before tells nothing."""
        self.since = self.last = sample


def _goes_on(before: Sample, after: Sample) -> bool:
    """Whether the difference of two samples tells something.

    It does not when counters began anew, a clock went back, or too long a time has passed.
    """
    return (
        0 < after.time_ns - before.time_ns <= GAP_MAX_NS
        and after.run_ns >= before.run_ns
        and after.wait_ns >= before.wait_ns
        and after.instructions >= before.instructions
    )


def _work(before: Sample, after: Sample) -> Work:
    return Work(
        (after.time_ns - before.time_ns) / 1e9,
        (after.run_ns - before.run_ns) / 1e9,
        (after.wait_ns - before.wait_ns) / 1e9,
        float(after.instructions - before.instructions),
    )


class FastLoop:
    """Governs the limits of vCPUs that book Ips. One thread runs it and the cycles."""

    def __init__(self, port: FastPort, controller: str = "default", sp_s: float = 0.1) -> None:
        self._port = port
        self._controller = ips_controller.CONTROLLERS[controller]
        self._vcpus: dict[VcpuKey, _Vcpu] = {}
        self.sp_s = sp_s
        self.tick_s = sp_s / ips_controller.TICKS
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
            self._vcpus[key].forget(sample)

    def _handed(self, key: VcpuKey, now: Governed) -> _Vcpu:
        known = self._vcpus.get(key)
        share = min(1.0, now.limit.cores)
        if known is None:
            return _Vcpu(now, State(share, rho=now.nominal_ips))
        state, before = known.state, known.governed
        if before.place != now.place:
            done = _work(known.since, known.last) if known.since and known.last else None
            state = ips_controller.moved(
                state, before.terms, done, before.nominal_ips, now.nominal_ips
            )
            known.since = known.last
        if before.limit != now.limit:
            state = replace(state, share=share, held_s=0.0)
        known.governed, known.state = now, state
        return known

    def tick(self) -> None:
        """Look at every vCPU once, and write the limits that have to change."""
        samples = self._port.sample(self._vcpus.keys())
        wanted: dict[VcpuKey, Bandwidth] = {}
        for key, vcpu in self._vcpus.items():
            if self._look(vcpu, samples.get(key)):
                limit = ips_controller.limit(vcpu.state.share)
                if limit != vcpu.governed.limit:
                    wanted[key] = limit
        self._write(wanted)

    def settle(self) -> None:
        """Write limits that neither pay back nor call in: nobody will be there to end that."""
        limits = {
            key: ips_controller.limit(
                ips_controller.first_share(vcpu.governed.terms.ips, vcpu.state.rho)
            )
            for key, vcpu in self._vcpus.items()
            if vcpu.state.rho is not None
        }
        self._write({k: lim for k, lim in limits.items() if lim != self._vcpus[k].governed.limit})

    def _write(self, wanted: Mapping[VcpuKey, Bandwidth]) -> None:
        if not wanted:
            return
        failures = self._port.throttle(wanted)
        self.writes += len(wanted) - len(failures)
        self.failed.update(failure.reason for failure in failures.values())
        for key, limit in wanted.items():
            self._written(self._vcpus[key], limit, failed=key in failures)

    def _look(self, vcpu: _Vcpu, sample: Sample | None) -> bool:
        """Take note of a sample; whether the controller wants another share."""
        last, since = vcpu.last, vcpu.since
        if sample is None or last is None or since is None or not _goes_on(last, sample):
            vcpu.forget(sample)
            return False
        vcpu.last = sample
        state, terms = vcpu.state, vcpu.governed.terms
        wall_s = (sample.time_ns - since.time_ns) / 1e9
        run_s = (sample.run_ns - since.run_ns) / 1e9
        instructions = float(sample.instructions - since.instructions)
        if not self._controller.due(state, terms, wall_s, run_s, instructions):
            return False
        latest = _work(last, sample)
        vcpu.state = self._controller.act(state, terms, _work(since, sample), latest)
        vcpu.since = sample
        return vcpu.state.share != state.share

    def _written(self, vcpu: _Vcpu, limit: Bandwidth, *, failed: bool) -> None:
        """Remember what holds after a write: the limit as the kernel takes it, or the old one."""
        if failed:
            limit = vcpu.governed.limit
        vcpu.governed = replace(vcpu.governed, limit=limit)
        vcpu.state = replace(vcpu.state, share=min(1.0, limit.cores))
