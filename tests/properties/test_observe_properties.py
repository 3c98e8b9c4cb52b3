# SPDX-License-Identifier: Apache-2.0
"""An agent that only observes: it never writes, and decides what an agent that enforces decides."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from amp_nova.accounting.would_throttle import throttled_s
from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.agent.state.policy_runner import PolicySettings
from amp_nova.control.context import Terms
from amp_nova.model.observation import Usage
from tests.properties.test_loop_properties import Chance, Life, cycle, hybrids, specs
from tests.support import hosts
from tests.support.hosts import FakeHost

DRY = LoopSettings(Terms(), dry_run=True)
ratios = st.floats(0.0, 1.0)
limits = st.floats(0.01, 1.0)


class NeverWrites:
    """An actuator that fails the test when it is used."""

    def apply(self, changes):
        raise AssertionError(f"written: {changes}")

    def throttle(self, limits):
        raise AssertionError(f"written: {limits}")


class Observed(Life):
    """The events of an agent's life, hostile ones too, for one that observes all the time."""

    @initialize(
        types=hybrids,
        numbers=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    )
    def begin(self, types, numbers):
        self.host = FakeHost(hosts.topology(types))
        settings = LoopSettings(Terms(), policy=PolicySettings(2.0), dry_run=True)
        self.loop = Loop(self.host, NeverWrites(), settings, Chance(numbers))
        self.count = 0
        self.report = None

    @rule()
    def new_agent(self):
        self.loop = Loop(self.host, NeverWrites(), DRY)

    def check(self, vcpu, kept, allowed, *, soft):
        """Nothing is enforced, and what would be is a limit that the kernel accepts."""
        limit, delivery = vcpu.entitlement.limit, vcpu.account.delivery
        assert self.host.applied == []
        assert vcpu.failure is None
        assert 0.0 <= delivery.throttled_least_s <= delivery.throttled_most_s + 1e-9
        assert delivery.beyond_ref_s >= 0.0
        if limit is not None:
            assert 1000 <= limit.quota_us <= limit.period_us


TestObserved = Observed.TestCase


@st.composite
def busy_hosts(draw):
    """Twice the same host of one core type, with guests that want all they can get or nothing."""
    pair = (
        FakeHost(hosts.topology({"only": (4, 1.0)})),
        FakeHost(hosts.topology({"only": (4, 1.0)})),
    )
    for number in range(draw(st.integers(1, 5))):
        booked, wants = draw(specs), draw(st.sampled_from([0.0, 1.0]))
        vcpus = draw(st.integers(1, 2))
        for host in pair:
            host.add(f"vm{number}", booked, vcpus, wants=wants)
    return pair


@given(busy_hosts(), st.integers(2, 20))
def test_predicted_throttling_is_that_of_enforcement(pair, cycles):
    """The same limits, and within 5 % the same throttled time, for guests that are busy or idle."""
    enforced, observed = pair
    enforcing = Loop(enforced, enforced, LoopSettings(Terms()))
    watching = Loop(observed, NeverWrites(), DRY)
    first = cycle(enforcing, enforced), cycle(watching, observed)
    before_ns = {k: enforced.vcpu(*k).throttled_ns for k in first[0].entitlements}
    for _ in range(cycles):
        real, would = cycle(enforcing, enforced), cycle(watching, observed)

    limits = [{k: e.limit for k, e in c.entitlements.items()} for c in (real, would)]
    assert limits[0] == limits[1]
    for key, ns in before_ns.items():
        throttled_s = (enforced.vcpu(*key).throttled_ns - ns) / 1e9
        delivery = would.accounts.of(key).delivery
        for bound in (delivery.throttled_least_s, delivery.throttled_most_s):
            assert bound == pytest.approx(throttled_s, rel=0.05, abs=0.01)
        booked = would.entitlements[key].share and would.entitlements[key].booking.refcores
        if booked and observed.vcpu(*key).wants:
            beyond_ref_s = max(0.0, 1.0 - booked) * cycles
            assert delivery.beyond_ref_s == pytest.approx(beyond_ref_s, rel=0.05, abs=0.01)


@given(ratios, ratios, limits, st.floats(0.1, 4.0))
def test_time_throttled_is_bounded_and_grows_with_demand(ran, waited, limit, speed):
    """From nothing to what a limit takes of a vCPU that always wants to run; least before most."""
    assume(ran + waited <= 1.0)
    least, most = throttled_s(Usage(1.0, ran, waited, 0.0), limit, speed)
    more = throttled_s(Usage(1.0, ran, 1.0 - ran, 0.0), limit, speed)

    assert 0.0 <= least <= most + 1e-12
    assert most <= 1.0 - limit + 1e-12
    assert least <= more[0] + 1e-12
    assert most <= more[1] + 1e-12
