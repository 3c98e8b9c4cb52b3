# SPDX-License-Identifier: Apache-2.0
"""The control loop over a fake host: what holds whatever happens."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.agent.state.policy_runner import PolicySettings
from amp_nova.control.context import Terms
from tests.support import hosts
from tests.support.hosts import FakeHost, state

SETTLED_AFTER = 3
"""Cycles within which a host that nobody touches is at rest."""

hybrids = st.sampled_from(
    [
        {"slow": (2, 1.0), "fast": (1, 2.0)},
        {"slow": (1, 1.0), "middle": (2, 1.6), "fast": (1, 2.4)},
        {"only": (3, 1.0)},
    ]
)
amounts = st.sampled_from(["0.1", "0.25", "0.3", "0.5", "0.75", "0.9", "1", "1.5", "2", "7"])
specs = st.one_of(
    st.fixed_dictionaries(
        {"pref_core": amounts},
        optional={
            "limit": st.sampled_from(["hard", "soft"]),
            "pref_core.0": amounts,
            "core_type": st.sampled_from(["slow", "fast", "huge"]),
        },
    ),
    st.sampled_from(
        [{}, {"ips": "1G"}, {"core_type": "fast"}, {"pref_core": "garbage"}, {"pref_core.9": "1"}]
    ),
)


class Chance:
    """A policy that places vCPUs somewhere, right or wrong, by a list of numbers."""

    name = "chance"

    def __init__(self, numbers):
        self._numbers = numbers

    def decide(self, view):
        numbers = self._numbers
        return {
            v.key: {numbers[(view.interval + at) % len(numbers)]} for at, v in enumerate(view.vcpus)
        }


def cycle(loop, host):
    host.wait(1.0)
    return loop.cycle()


@st.composite
def populated(draw, one_pcpu=False):
    """A host with up to six domains, often more than it can hold."""
    host = FakeHost(hosts.topology(draw(hybrids)))
    everything = sorted(p.id for p in host.topology.pcpus)
    for number in range(draw(st.integers(0, 6))):
        allowed = draw(st.none() | st.frozensets(st.sampled_from(everything), min_size=1))
        host.add(f"vm{number}", draw(specs), draw(st.integers(1, 3)), allowed)
    return host


@given(populated(), st.booleans(), st.sampled_from([0.0, 0.2]))
def test_a_host_comes_to_rest_and_a_restart_adopts_it(host, one_pcpu, reserve_ratio):
    """After a few cycles nothing changes any more, over-booked or not, for old and new agents."""
    settings = LoopSettings(Terms(reserve_ratio, one_pcpu))
    loop = Loop(host, host, settings)
    for _ in range(SETTLED_AFTER):
        cycle(loop, host)
    before = state(host)
    host.applied.clear()

    for agent in (loop, Loop(host, host, settings), Loop(host, host, settings)):
        for _ in range(2):
            assert not cycle(agent, host).changes.vcpus
    assert state(host) == before
    assert host.applied == []


@given(populated())
def test_a_newcomer_that_books_nothing_touches_nobody(host):
    """Only those who book are placed for."""
    loop = Loop(host, host)
    for _ in range(SETTLED_AFTER):
        cycle(loop, host)
    before = state(host)
    host.add("new", {"pref_core": "garbage"}, 2)

    assert not cycle(loop, host).changes.vcpus
    assert {k: v for k, v in state(host).items() if k[0] != "new"} == before


class Life(RuleBasedStateMachine):
    """Domains come, go, restart and are meddled with; pCPUs go; writes fail; a policy raves."""

    @initialize(
        types=hybrids,
        numbers=st.lists(st.integers(0, 4), min_size=1, max_size=5),
        one=st.booleans(),
    )
    def begin(self, types, numbers, one):
        self.host = FakeHost(hosts.topology(types))
        settings = LoopSettings(Terms(0.0, one), policy=PolicySettings(2.0))
        self.loop = Loop(self.host, self.host, settings, Chance(numbers))
        self.count = 0
        self.report = None

    def some(self, at):
        names = sorted(self.host.domains)
        return names[at % len(names)]

    @rule(specs=specs, vcpus=st.integers(1, 2))
    def start(self, specs, vcpus):
        self.count += 1
        self.host.add(f"vm{self.count}", specs, vcpus)

    @precondition(lambda self: self.host.domains)
    @rule(at=st.integers(0, 9))
    def stop(self, at):
        self.host.domains.pop(self.some(at))

    @precondition(lambda self: self.host.domains)
    @rule(at=st.integers(0, 9))
    def restart(self, at):
        self.count += 1
        self.host.restart(self.some(at), f"incarnation {self.count}")

    @precondition(lambda self: self.host.domains)
    @rule(at=st.integers(0, 9), cores=st.sampled_from([0.05, 0.5, 1.0, 3.0, None]))
    def meddle_with_quota(self, at, cores):
        limit = None if cores is None else hosts.limit(cores)
        self.host.vcpu(self.some(at)).bandwidth = limit

    @precondition(lambda self: self.host.domains)
    @rule(at=st.integers(0, 9))
    def meddle_with_affinity(self, at):
        vcpu = self.host.vcpu(self.some(at))
        vcpu.pcpus = frozenset(list(vcpu.allowed)[:1]) or vcpu.pcpus

    @precondition(lambda self: self.host.domains)
    @rule(at=st.integers(0, 9))
    def hold_or_let_go(self, at):
        name = self.some(at)
        if self.host.paused.pop(name, None) is None:
            self.host.paused[name] = "paused"

    @precondition(lambda self: self.host.domains)
    @rule(at=st.integers(0, 9))
    def refuse_or_not(self, at):
        self.host.refuses ^= {(self.some(at), 0)}

    @precondition(lambda self: len(self.host.topology.pcpus) > 1 and self.count < 20)
    @rule()
    def lose_a_pcpu(self):
        self.host.unplug_pcpus(self.host.topology.pcpus[-1].id)

    @rule()
    def new_agent(self):
        self.loop = Loop(self.host, self.host, LoopSettings(policy=PolicySettings(2.0)))

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 60.0, 400.0]), times=st.integers(1, 3))
    def cycle(self, seconds, times):
        before = state(self.host)
        for _ in range(times):
            self.host.wait(seconds)
            self.report = self.loop.cycle()
        for name in self.host.paused:
            after = state(self.host)
            assert all(after[k] == before[k] for k in after if k[0] == name)

    @invariant()
    def every_booking_is_kept_or_noted(self):
        if self.report is None:
            return
        now, self.report, report = state(self.host), None, self.report
        for domain in report.domains:
            for vcpu in domain.vcpus:
                key = (domain.domain.resource, vcpu.reading.index)
                soft = domain.domain.specs.get("amp:limit") == "soft"
                self.check(vcpu, now[key], self.host.vcpu(*key).allowed, soft=soft)

    def check(self, vcpu, kept, allowed, *, soft):
        entitlement, (pcpus, cores) = vcpu.entitlement, kept
        assert min(vcpu.account.shortfall_ref_s) >= -1e-9
        assert entitlement.booking.refcores is None or entitlement.share or entitlement.note
        if entitlement.share is None or vcpu.failure:
            return
        assert set(pcpus) <= allowed
        if entitlement.governed_by == "excluded":  # moved by others, within what it booked
            fastest = max(self.host.topology.type_of(p).coefficient for p in pcpus)
            assert (cores or 1.0) * fastest <= (entitlement.booking.refcores or 9.0) * 1.001
            return
        core_type = self.host.topology.only_type(pcpus)
        assert core_type.name == entitlement.core_type
        if entitlement.limit is not None:
            gets = cores * core_type.coefficient
            booked = entitlement.booking.refcores
            assert soft or gets <= booked * 1.001
            assert entitlement.note or gets >= booked * 0.999


TestLife = Life.TestCase
