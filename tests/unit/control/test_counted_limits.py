# SPDX-License-Identifier: Apache-2.0
"""Limits of vCPUs that book instructions per second, sample by sample."""

import pytest
from msgspec import structs

from amp_nova.control import limit
from amp_nova.control.context import Home, Share, Terms
from amp_nova.control.entitlement import Entitlement
from amp_nova.control.limit import OVERDRAFT_S, Carried, Limits
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.bandwidth import PERIOD_MIN_US, Bandwidth, bandwidth
from amp_nova.model.observation import VcpuSample

KEY = ("vm", 0)
ON = frozenset({0})
NOMINAL = 2e9
TERMS = Terms()


class Vcpu:
    """A vCPU that books a part of nominal Ips, and runs as its limits say at its own rate."""

    def __init__(self, booked, burst_s=0.0, max_cores=None):
        self.rate, self.wants, self.most, self.gift_s = NOMINAL, 1.0, 1.0, 0.0
        share = Share(booked, PERIOD_MIN_US, "counts", burst_s)
        first = bandwidth(booked, PERIOD_MIN_US)
        booking, home = VcpuBooking(0, ips=booked * NOMINAL), Home("slow", 0, booked, max_cores)
        entitlement = Entitlement(
            KEY, booking, ON, ON, governed_by="ips", home=home, share=share, limit=first
        )
        self.entitlements = {KEY: entitlement}
        self.limits = Limits({KEY: Carried()}, samples={KEY: VcpuSample(0, 0, 0, 0)})
        self.writes, self.written = 0, False

    @property
    def limit(self):
        """The limit in force."""
        return self.limits.between.get(KEY, self.entitlements[KEY].limit)

    @property
    def state(self):
        """What is carried over."""
        return self.limits.carried[KEY]

    def carry(self, **state):
        """Let it carry this over."""
        carried = {KEY: structs.replace(self.state, **state)}
        self.limits = structs.replace(self.limits, carried=carried)

    def sampled(self, sample):
        """One sample, and the write it leads to."""
        self.limits, changed = limit.measured(self.limits, self.entitlements, {KEY: sample}, TERMS)
        self.limits = structs.replace(self.limits, between={**self.limits.between, **changed})
        self.writes, self.written = self.writes + len(changed), bool(changed)

    def let(self, seconds):
        """Let time pass; the booking's seconds that it was delivered."""
        before = self.limits.samples[KEY].instructions
        for _ in range(round(seconds / TERMS.tick_s)):
            was, wants_s = self.limits.samples[KEY], self.wants * TERMS.tick_s
            cores = 1.0 if self.limit is None else self.limit.cores
            run_s = min(cores, self.most) * wants_s + self.gift_s * self.written
            self.sampled(
                VcpuSample(
                    was.time_ns + round(TERMS.tick_s * 1e9),
                    was.run_ns + round(run_s * 1e9),
                    was.wait_ns + round(max(0.0, wants_s - run_s) * 1e9),
                    was.instructions + round(run_s * self.rate),
                )
            )
        done = self.limits.samples[KEY].instructions - before
        return done / self.entitlements[KEY].booking.ips


@pytest.mark.parametrize("booked", [0.06, 0.3, 0.9])
def test_steady_work_is_limited_once_for_all(booked):
    """Each write gives time away."""
    vcpu = Vcpu(booked)
    vcpu.rate *= 1.1
    vcpu.let(2.0)
    vcpu.writes = 0

    assert vcpu.let(10.0) == pytest.approx(10.0, rel=0.005)
    assert vcpu.writes == 0


def test_what_others_took_is_made_up_for_a_little_at_most():
    """A minute with a third of the booking does not lead to more than the booking."""
    vcpu = Vcpu(0.6)
    vcpu.most = 0.2
    vcpu.let(60.0)
    vcpu.most = 1.0

    assert vcpu.let(1.0) <= 1.03


@pytest.mark.parametrize("burst_s", [0.5, 3.0, 10.0])
def test_a_burst_spends_what_was_banked_and_no_more(burst_s):
    """As much above the booking as was banked."""
    vcpu = Vcpu(0.25, burst_s, max_cores=1.0)
    vcpu.wants = 0.0
    vcpu.let(60.0)
    vcpu.wants = 1.0

    assert vcpu.let(20.0) == pytest.approx(20.0 + burst_s, rel=0.01)


def test_idle_time_fills_the_bank_no_faster_than_it_passes():
    """A second not wanted banks a second of the booking."""
    vcpu = Vcpu(0.25, 10.0, max_cores=1.0)
    vcpu.wants = 0.0
    vcpu.let(1.0)
    vcpu.wants = 1.0

    assert vcpu.let(5.0) == pytest.approx(6.0, rel=0.01)


def test_a_vcpu_that_had_too_much_keeps_running():
    """Even the greatest excess leaves a fifth of the booking."""
    vcpu = Vcpu(0.5)
    vcpu.carry(balance_s=-OVERDRAFT_S)
    vcpu.let(TERMS.tick_s)

    assert 0.19 <= vcpu.let(0.8) / 0.8 <= 0.4


def test_what_writes_give_away_is_paid_for():
    """On a kernel that gives 8 ms with every write, 40 s of changing work get their booking."""
    vcpu, total = Vcpu(0.3), 0.0
    vcpu.gift_s = 0.008
    for second in range(40):
        vcpu.rate = NOMINAL * (1.0 + 0.3 * (second % 2))
        total += vcpu.let(1.0)

    assert total == pytest.approx(40.0, rel=0.01)


@pytest.mark.parametrize(
    "jump",
    [
        {"instructions": -(10**12)},
        {"run_ns": -(10**12)},
        {"wait_ns": -(10**12)},
        {"time_ns": -(10**12)},
        {"time_ns": 10**10},
    ],
    ids=["reset", "run back", "wait back", "clock back", "clock ahead"],
)
@pytest.mark.fault("counters and clocks jump", "limits stay as they are")
def test_jumps_of_counters_and_clocks_change_nothing(jump):
    """Neither the limit nor what is delivered afterwards."""
    vcpu = Vcpu(0.3)
    vcpu.let(2.0)
    in_force, was = vcpu.limit, vcpu.limits.samples[KEY]
    vcpu.sampled(structs.replace(was, **{k: getattr(was, k) + v for k, v in jump.items()}))

    assert vcpu.limit == in_force
    assert vcpu.let(1.0) == pytest.approx(1.0, rel=0.01)


def test_a_limit_without_an_agent_pays_nothing_back():
    """A vCPU that had too much just now does not stay limited below its booking."""
    vcpu = Vcpu(0.3)
    vcpu.carry(balance_s=-0.1)
    vcpu.let(TERMS.tick_s)
    assert vcpu.limit.cores < 0.2

    (made,) = limit.without_balance(vcpu.limits, vcpu.entitlements, TERMS).values()

    assert made == Bandwidth(6_000, PERIOD_MIN_US)
