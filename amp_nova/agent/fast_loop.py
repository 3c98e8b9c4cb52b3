"""The fast loop: enforces bookings of instructions per second, many times between two cycles.

The control loop in small: sample a few counters of each vCPU whose entitlement is governed by Ips,
ask the controller (``control.ips_controller``), and write the limits that changed. Which vCPUs
those are, and where they run, is decided by the cycle.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from amp_nova.control import ips_controller
from amp_nova.control.ips_controller import State, Terms, Work
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Sample, VcpuKey
from amp_nova.ports import Actuator, Sensor

GAP_MAX_NS = 1_000_000_000
"""Samples further apart than this say nothing: the loop hung, the machine was suspended, or a clock
jumped."""


@dataclass(frozen=True, slots=True)
class IpsSettings:
    """How bookings of instructions per second are enforced.

    ``controller``: one of ``ips_controller.CONTROLLERS``; ``sp_s``: its sampling period.
    """

    controller: str = "default"
    sp_s: float = 0.1


@dataclass(frozen=True, slots=True)
class Target:
    """One vCPU as a cycle hands it over: its booking, the limit in force, and where it runs.

    ``core_type``: the one it is kept on, if any; ``nominal_ips``: those of that core type.
    """

    terms: Terms
    limit: Bandwidth
    core_type: str | None = None
    nominal_ips: float | None = None


@dataclass(slots=True)
class _Vcpu:
    """What is known of one vCPU: samples when its controller last acted, and the last ones.

    Mutable, because it is updated 80 times per second.
    """

    target: Target
    state: State
    since: Sample | None = None
    last: Sample | None = None


def _goes_on(before: Sample, after: Sample) -> bool:
    """Whether the difference of two samples means something.

    It does not after counters began anew, a clock went back, or too much time has passed.
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
    """Sets the limits of vCPUs that book Ips. It shares one thread with the control loop."""

    def __init__(
        self, sensor: Sensor, actuator: Actuator, settings: IpsSettings | None = None
    ) -> None:
        settings = settings or IpsSettings()
        self._sensor, self._actuator = sensor, actuator
        self._controller = ips_controller.CONTROLLERS[settings.controller]
        self._vcpus: dict[VcpuKey, _Vcpu] = {}
        self.sp_s = settings.sp_s
        self.tick_s = settings.sp_s / ips_controller.TICKS
        """Time between two samples."""
        self.writes = 0
        self.failed: Counter[str] = Counter()

    @property
    def active(self) -> bool:
        """Whether there is any vCPU to look after."""
        return bool(self._vcpus)

    @property
    def limits(self) -> dict[VcpuKey, Bandwidth]:
        """The limits that the controller last set, by vCPU."""
        return {key: vcpu.target.limit for key, vcpu in self._vcpus.items()}

    def follow(self, targets: Mapping[VcpuKey, Target]) -> None:
        """Look after these vCPUs from now on, and no others."""
        new = targets.keys() - self._vcpus.keys()
        self._vcpus = {key: self._taken_over(key, now) for key, now in targets.items()}
        for key, sample in (self._sensor.sample(new) if new else {}).items():
            self._vcpus[key].since = self._vcpus[key].last = sample

    def _taken_over(self, key: VcpuKey, now: Target) -> _Vcpu:
        """A vCPU with what the last cycle made of it: another core type, or another limit."""
        known = self._vcpus.get(key)
        share = min(1.0, now.limit.cores)
        if known is None:
            return _Vcpu(now, State(share, rho=now.nominal_ips))
        state, before, since = known.state, known.target, known.since
        if before.core_type != now.core_type:
            done = _work(since, known.last) if since and known.last else None
            old, new = before.nominal_ips, now.nominal_ips
            state = ips_controller.moved(state, before.terms, done, old, new)
            since = known.last
        if before.limit != now.limit:
            state = replace(state, share=share, held_s=0.0)
        return _Vcpu(now, state, since, known.last)

    def tick(self) -> None:
        """Sample every vCPU once, and write the limits that have to change."""
        samples = self._sensor.sample(self._vcpus.keys())
        wanted: dict[VcpuKey, Bandwidth] = {}
        for key, vcpu in self._vcpus.items():
            if self._add(vcpu, samples.get(key)):
                limit = ips_controller.limit(vcpu.state.share)
                if limit != vcpu.target.limit:
                    wanted[key] = limit
        self._write(wanted)

    def finish(self) -> None:
        """Write steady-state limits, without corrections that nobody would be there to end."""
        limits = {
            key: ips_controller.limit(
                ips_controller.first_share(vcpu.target.terms.ips, vcpu.state.rho)
            )
            for key, vcpu in self._vcpus.items()
            if vcpu.state.rho is not None
        }
        self._write({k: lim for k, lim in limits.items() if lim != self._vcpus[k].target.limit})

    def _add(self, vcpu: _Vcpu, sample: Sample | None) -> bool:
        """Add a sample; whether the controller wants another share."""
        last, since = vcpu.last, vcpu.since
        if sample is None or last is None or since is None or not _goes_on(last, sample):
            vcpu.since = vcpu.last = sample
            return False
        vcpu.last = sample
        state, terms = vcpu.state, vcpu.target.terms
        wall_s = (sample.time_ns - since.time_ns) / 1e9
        run_s = (sample.run_ns - since.run_ns) / 1e9
        instructions = float(sample.instructions - since.instructions)
        if not self._controller.due(state, terms, wall_s, run_s, instructions):
            return False
        vcpu.state = self._controller.act(state, terms, _work(since, sample), _work(last, sample))
        vcpu.since = sample
        return vcpu.state.share != state.share

    def _write(self, wanted: Mapping[VcpuKey, Bandwidth]) -> None:
        if not wanted:
            return
        failures = self._actuator.throttle(wanted)
        self.writes += len(wanted) - len(failures)
        self.failed.update(failure.reason for failure in failures.values())
        for key, limit in wanted.items():
            vcpu = self._vcpus[key]
            # A limit as the kernel takes it, or the old one where it could not be written.
            limit = vcpu.target.limit if key in failures else limit
            vcpu.target = replace(vcpu.target, limit=limit)
            vcpu.state = replace(vcpu.state, share=min(1.0, limit.cores))
