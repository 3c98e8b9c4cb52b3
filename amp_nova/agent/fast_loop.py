# SPDX-License-Identifier: Apache-2.0
"""The fast loop: enforces bookings of instructions per second, many times between two cycles.

It is a small control loop: it samples a few counters of each vCPU whose entitlement is governed by
Ips, asks the controller (``control.ips_controller``), and writes the limits that changed. The cycle
decides which vCPUs those are, and where they run.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import structs

from amp_nova.control import ips_controller
from amp_nova.control.ips_controller import Controller, IpsState, IpsTerms, Work
from amp_nova.model.allocation import Failure
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import VcpuKey, VcpuSample
from amp_nova.ports import Actuator, Sensor

GAP_MAX_NS = 1_000_000_000
"""Samples further apart than this are not compared: the loop hung, the machine was suspended, or a
clock jumped."""
ALERT_FIRST_S = 5.0
ALERT_S = 30.0
"""A vCPU is sampled in every tick for this long after its work changed, and for ``ALERT_FIRST_S``
when it is new, so that the next change is noticed at once; otherwise once per sampling period."""
PERIOD_RATIO = 0.95
"""A sampling period counts as over after this part of it, because ticks come slightly early or
late."""
IDLE_RATIO = 0.25
"""A vCPU that uses less than this part of its limit is also sampled once per sampling period: even
if its work changes, it gets what it wants."""

Bandwidths = Mapping[VcpuKey, Bandwidth]


@dataclass(frozen=True, slots=True)
class IpsSettings:
    """How bookings of instructions per second are enforced.

    ``controller``: the rule; ``sp_s``: its sampling period.
    """

    controller: Controller = ips_controller.DEFAULT
    sp_s: float = 0.1


@dataclass(frozen=True, slots=True)
class Throttled:
    """What one run of the loop wrote: the new limits, and why others could not be written."""

    limits: Bandwidths
    failures: Mapping[VcpuKey, Failure]


@dataclass(slots=True)
class _Vcpu:
    """The state of one vCPU.

    ``since``: the sample at which its controller last acted; ``last``: the latest sample; ``tick``:
    when it is sampled next; ``alert_ns``: until when it is sampled in every tick. Mutable, because
    it is updated up to 80 times per second.
    """

    terms: IpsTerms
    state: IpsState
    since: VcpuSample | None = None
    last: VcpuSample | None = None
    tick: int = 0
    alert_ns: float = 0.0

    def begin(self, sample: VcpuSample | None) -> None:
        """Start with this sample, and discard earlier ones."""
        self.since = self.last = sample
        if sample is not None:
            self.alert_ns = max(self.alert_ns, sample.time_ns + ALERT_FIRST_S * 1e9)


def _work(before: VcpuSample | None, after: VcpuSample | None) -> Work | None:
    """The difference between two samples.

    ``None`` if one is missing, a counter or clock went back, or too much time has passed.
    """
    if before is None or after is None:
        return None
    wall_ns, run_ns = after.time_ns - before.time_ns, after.run_ns - before.run_ns
    wait_ns, instructions = after.wait_ns - before.wait_ns, after.instructions - before.instructions
    if not 0 < wall_ns <= GAP_MAX_NS or run_ns < 0 or wait_ns < 0 or instructions < 0:
        return None
    return Work(wall_ns / 1e9, run_ns / 1e9, wait_ns / 1e9, float(instructions))


class FastLoop:
    """Sets the limits of vCPUs that book Ips. It runs in the same thread as the control loop."""

    def __init__(
        self, sensor: Sensor, actuator: Actuator, settings: IpsSettings | None = None
    ) -> None:
        settings = settings or IpsSettings()
        self._sensor, self._actuator = sensor, actuator
        self._controller = settings.controller
        self._vcpus: dict[VcpuKey, _Vcpu] = {}
        self.sp_s = settings.sp_s
        self.tick_s = settings.sp_s / ips_controller.TICKS
        """Time between two samples."""
        self._tick = 0

    @property
    def active(self) -> bool:
        """Whether there is any vCPU to control."""
        return bool(self._vcpus)

    @property
    def next_tick(self) -> int:
        """After how many ticks a vCPU is due: the ticks before that would do nothing."""
        return max(1, min((v.tick for v in self._vcpus.values()), default=0) - self._tick)

    def follow(self, booked: Mapping[VcpuKey, IpsTerms], limits: Bandwidths) -> None:
        """Control exactly these vCPUs from now on; ``limits``: those in force."""
        new = booked.keys() - self._vcpus.keys()
        self._vcpus = {key: self._taken_over(key, now, limits[key]) for key, now in booked.items()}
        for key, sample in (self._sensor.sample(new) if new else {}).items():
            self._vcpus[key].begin(sample)

    def _taken_over(self, key: VcpuKey, now: IpsTerms, limit: Bandwidth) -> _Vcpu:
        """A vCPU, updated with the core type and the limit that the last cycle gave it."""
        vcpu = self._vcpus.get(key)
        share = _share(limit)
        if vcpu is None:
            return _Vcpu(now, IpsState(share, rho=now.nominal_ips))
        before, vcpu.terms = vcpu.terms, now
        if before.core_type != now.core_type:
            old, new, work = before.nominal_ips, now.nominal_ips, _work(vcpu.since, vcpu.last)
            vcpu.state = ips_controller.moved(vcpu.state, before, work, old, new)
            vcpu.begin(vcpu.last)
        if vcpu.state.share != share:
            vcpu.state = structs.replace(vcpu.state, share=share, in_force_s=0.0)
        return vcpu

    def tick(self, limits: Bandwidths, ticks: int = 1) -> Throttled:
        """Sample the vCPUs that are due, and write the limits that have to change.

        ``limits``: those in force; ``ticks``: how many have passed since the last call, at most
        ``next_tick``.
        """
        self._tick += ticks
        due = {key: vcpu for key, vcpu in self._vcpus.items() if vcpu.tick <= self._tick}
        samples = self._sensor.sample(due)
        new_limits = {
            key: ips_controller.limit(vcpu.state.share)
            for key, vcpu in due.items()
            if self._add(vcpu, samples.get(key))
        }
        return self._write(new_limits, limits)

    def finish(self, limits: Bandwidths) -> Throttled:
        """Write steady-state limits: after the agent has ended, nothing would end a correction."""
        new_limits = {
            key: ips_controller.limit(ips_controller.first_share(vcpu.terms.ips, vcpu.state.rho))
            for key, vcpu in self._vcpus.items()
            if vcpu.state.rho is not None
        }
        return self._write(new_limits, limits)

    def _add(self, vcpu: _Vcpu, sample: VcpuSample | None) -> bool:
        """Add a sample; returns whether the controller wants another share."""
        vcpu.tick = self._tick + 1
        work, last = _work(vcpu.since, sample), vcpu.last
        if work is None or sample is None:
            vcpu.begin(sample)
            return False
        vcpu.last, state, terms = sample, vcpu.state, vcpu.terms
        wall_s, run_s = work.wall_s, work.run_s
        changed = self._controller.changed(state, terms, run_s, work.instructions)
        if not changed and wall_s < terms.sp_s * PERIOD_RATIO:
            return False
        if changed and state.rho is not None:
            vcpu.alert_ns = sample.time_ns + ALERT_S * 1e9
        if sample.time_ns >= vcpu.alert_ns or run_s < IDLE_RATIO * state.share * wall_s:
            # At a multiple of TICKS like all of these, so that the loop wakes up once per period.
            next_period = self._tick + ips_controller.TICKS
            vcpu.tick = next_period + -next_period % ips_controller.TICKS
        latest = work if last is vcpu.since else _work(last, sample)
        vcpu.state = now = self._controller.act(state, terms, work, latest or work, changed)
        vcpu.since = sample
        return now.share != state.share

    def _write(self, new_limits: Bandwidths, limits: Bandwidths) -> Throttled:
        """Write the limits that are not in force yet."""
        changed = {key: limit for key, limit in new_limits.items() if limit != limits[key]}
        failures = self._actuator.throttle(changed) if changed else {}
        written = {key: limit for key, limit in changed.items() if key not in failures}
        for key in new_limits:
            # The limit in force: as rounded for the kernel, or the old one if the write failed.
            vcpu, limit = self._vcpus[key], written.get(key, limits[key])
            vcpu.state = structs.replace(vcpu.state, share=_share(limit))
        return Throttled(written, failures)


def _share(limit: Bandwidth) -> float:
    """The share of a pCPU that a limit allows."""
    return min(1.0, limit.cores)
