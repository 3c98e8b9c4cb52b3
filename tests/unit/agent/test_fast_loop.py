# SPDX-License-Identifier: Apache-2.0
"""The fast loop over a FAKE host whose counters do what a test needs."""

import pytest
from msgspec import structs

from amp_nova.agent import fast_loop as fast_loop_
from amp_nova.agent.fast_loop import FastLoop, IpsSettings
from amp_nova.control import ips_controller
from amp_nova.control.ips_controller import IpsTerms
from amp_nova.model.allocation import Failure
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import VcpuSample

R = 2e9
KEY, OTHER = ("vm", 0), ("vm", 1)
HALF = Bandwidth(10_000, 20_000)


class Counters:
    """A FAKE ``Sensor`` and ``Actuator``: vCPUs run as their limits say, each at its own rate."""

    def __init__(self, *keys, rate=R):
        self.now_ns, self.sampled = 0, 0
        self.rate, self.wants, self.limits, self.samples = {}, {}, {}, {}
        self.refuse, self.written = {}, []
        for key in keys:
            self.plug(key, rate)

    def plug(self, key, rate):
        """A vCPU that always wants to run."""
        self.rate[key], self.wants[key], self.limits[key] = rate, True, HALF
        self.samples[key] = VcpuSample(self.now_ns, 0, 0, 0)

    def let(self, seconds):
        """Time passes."""
        self.now_ns += round(seconds * 1e9)
        for key, was in self.samples.items():
            run_ns = round(self.wants[key] * seconds * 1e9 * self.limits[key].cores)
            wait_ns = round(self.wants[key] * seconds * 1e9) - run_ns
            self.samples[key] = VcpuSample(
                self.now_ns,
                was.run_ns + run_ns,
                was.wait_ns + wait_ns,
                was.instructions + round(run_ns / 1e9 * self.rate[key]),
            )

    def shift(self, key=KEY, **by):
        """What counters say jumps."""
        was = self.samples[key]
        self.samples[key] = structs.replace(was, **{k: getattr(was, k) + v for k, v in by.items()})

    def sample(self, keys):
        self.sampled += len(keys)
        return {key: self.samples[key] for key in keys if key in self.samples}

    def throttle(self, limits):
        done = {k: v for k, v in limits.items() if k not in self.refuse}
        self.limits |= done
        self.written += done.items()
        return {k: self.refuse[k] for k in limits if k in self.refuse}


def target(booked, core_type="slow", nominal_ips=R):
    return IpsTerms(booked * R, core_type=core_type, nominal_ips=nominal_ips)


class Running:
    """A fast loop with its part of the control loop's state: limits in force, and counts."""

    def __init__(self, counters):
        self.counters = counters
        self.fast = FastLoop(counters, counters, IpsSettings())
        self.tick_s = self.fast.tick_s
        self.limits, self.writes, self.failed = {}, 0, []

    def follow(self, **booked):
        """Follow the vCPUs that book these parts of ``R``; the limits in force are observed."""
        keys = {"vm": KEY, "other": OTHER}
        self.hand_over({keys[name]: target(part) for name, part in booked.items()})

    def hand_over(self, targets):
        self.limits = {key: self.counters.limits[key] for key in targets}
        self.fast.follow(targets, self.limits)

    def _add(self, throttled):
        self.limits |= throttled.limits
        self.writes += len(throttled.limits)
        self.failed += throttled.failures.values()

    def tick(self, ticks=1):
        self._add(self.fast.tick(self.limits, ticks))

    def finish(self):
        self._add(self.fast.finish(self.limits))


def running(booked=0.3, *, for_s=2.0, **more):
    """A loop that has followed one vCPU for a while."""
    counters = Counters(KEY, **more)
    loop = Running(counters)
    loop.follow(vm=booked)
    delivered(loop, counters, for_s)
    return loop, counters


def delivered(loop, counters, seconds, key=KEY):
    """Let time pass with the loop running; instructions per second of a vCPU over it."""
    before = counters.samples[key].instructions
    for _ in range(round(seconds / loop.tick_s)):
        counters.let(loop.tick_s)
        loop.tick()
    return (counters.samples[key].instructions - before) / seconds


def samples_in_a_second(loop, counters):
    """How many samples the next second takes."""
    before = counters.sampled
    delivered(loop, counters, 1.0)
    return counters.sampled - before


def test_steady_work_is_sampled_once_per_sampling_period():
    """From some seconds after it began; after a change again in every tick, for half a minute."""
    loop, counters = running(for_s=1.0)
    assert loop.tick_s == pytest.approx(0.1 / ips_controller.TICKS)
    assert samples_in_a_second(loop, counters) == 80
    written = len(counters.written)
    assert delivered(loop, counters, 10.0) == pytest.approx(0.3 * R, rel=0.001)
    assert len(counters.written) == written == loop.writes
    assert samples_in_a_second(loop, counters) == 10

    counters.rate[KEY] = 0.6 * R
    assert delivered(loop, counters, 1.0) == pytest.approx(0.3 * R, rel=0.05)

    assert samples_in_a_second(loop, counters) == 80
    delivered(loop, counters, fast_loop_.ALERT_S)
    assert samples_in_a_second(loop, counters) == 10


def test_a_vcpu_that_sleeps_is_sampled_once_per_sampling_period():
    """However much its work changed before."""
    loop, counters = running(for_s=1.0)
    counters.wants[KEY] = False
    delivered(loop, counters, 0.2)

    assert samples_in_a_second(loop, counters) == 10


def test_ticks_that_would_do_nothing_can_be_left_out():
    """Two vCPUs that began at different times are sampled together; the limit is the same."""
    loop, counters = running(for_s=1.0)
    counters.plug(OTHER, R)
    loop.tick()
    loop.follow(vm=0.3, other=0.2)
    delivered(loop, counters, 2.0 * fast_loop_.ALERT_FIRST_S)
    counters.let(loop.fast.next_tick * loop.tick_s)
    loop.tick(loop.fast.next_tick)
    before, periods = counters.samples[KEY].instructions, 100

    for _ in range(periods):
        assert loop.fast.next_tick == ips_controller.TICKS
        counters.let(loop.fast.next_tick * loop.tick_s)
        loop.tick(loop.fast.next_tick)

    done = counters.samples[KEY].instructions - before
    assert done / (periods * 0.1) == pytest.approx(0.3 * R, rel=0.001)


@pytest.mark.parametrize(
    "jump",
    [
        {"instructions": -(10**12)},
        {"run_ns": -(10**12)},
        {"wait_ns": -(10**12)},
        {"time_ns": -(10**10)},
        {"time_ns": 10**10},
        {"time_ns": 10**10, "instructions": 10**12, "run_ns": 10**9},
    ],
    ids=["reset", "run back", "wait back", "clock back", "clock ahead", "slept"],
)
@pytest.mark.fault("counters and clocks jump", "limits stay as they are")
def test_jumps_of_counters_and_clocks_change_nothing(jump):
    """Neither the limit nor what is delivered afterwards."""
    loop, counters = running()
    limit = counters.limits[KEY]

    counters.shift(**jump)
    counters.now_ns += jump.get("time_ns", 0)
    loop.tick()

    assert counters.limits[KEY] == limit
    assert delivered(loop, counters, 1.0) == pytest.approx(0.3 * R, rel=0.01)


def test_a_vcpu_that_cannot_be_sampled_is_left_as_it_is():
    """Until it can be."""
    loop, counters = running()
    gone = counters.samples.pop(KEY)
    limit = counters.limits[KEY]
    for _ in range(50):
        counters.let(loop.tick_s)
        loop.tick()
    assert counters.limits[KEY] == limit

    counters.samples[KEY] = gone

    assert delivered(loop, counters, 2.0) == pytest.approx(0.3 * R, rel=0.01)


def test_a_hot_plugged_vcpu_is_followed_from_then_on():
    """At its own booking and rate; the other one is not affected. Unplugged, it is forgotten."""
    loop, counters = running()
    counters.plug(OTHER, 0.7 * R)
    loop.follow(vm=0.3, other=0.1)

    assert delivered(loop, counters, 2.0, OTHER) == pytest.approx(0.1 * R, rel=0.01)
    assert delivered(loop, counters, 1.0, KEY) == pytest.approx(0.3 * R, rel=0.001)
    loop.follow()
    assert not loop.fast.active


def test_a_limit_that_somebody_else_wrote_is_corrected():
    """The limit in force counts, not the last one written."""
    loop, counters = running()
    counters.limits[KEY] = Bandwidth(16_000, 20_000)
    loop.follow(vm=0.3)

    delivered(loop, counters, 0.5)

    assert counters.limits[KEY].cores == pytest.approx(0.3, rel=0.02)


def test_a_failed_write_is_retried():
    """It is counted, and the limit in force is known."""
    counters = Counters(KEY)
    counters.refuse = {KEY: Failure("refused", "no")}
    loop = Running(counters)
    loop.follow(vm=0.1)
    delivered(loop, counters, 1.0)
    assert loop.limits == {KEY: HALF}
    assert len(loop.failed) >= 5
    assert loop.writes == 0

    counters.refuse = {}
    delivered(loop, counters, 6.0)

    assert delivered(loop, counters, 1.0) == pytest.approx(0.1 * R, rel=0.01)


@pytest.mark.parametrize("gain", [1.0, 2.0])
def test_a_move_to_another_core_type_costs_little(gain):
    """Within 3 % in the first second, whatever the work gains there."""
    loop, counters = running()
    share = counters.limits[KEY].cores
    counters.limits[KEY] = ips_controller.limit(share / 2)
    counters.rate[KEY] = R * gain
    loop.hand_over({KEY: target(0.3, "fast", 2 * R)})

    assert delivered(loop, counters, 1.0) == pytest.approx(0.3 * R, rel=0.03)


def test_a_stopped_loop_leaves_the_steady_state_limit():
    """A vCPU that had too much just now does not stay limited below its booking."""
    loop, counters = running(0.3)
    counters.shift(instructions=round(0.06 * R))  # too many by a fifth of a second's
    delivered(loop, counters, 0.1)
    assert counters.limits[KEY].cores < 0.2

    loop.finish()

    assert counters.limits[KEY].cores == pytest.approx(0.3, rel=0.1)
