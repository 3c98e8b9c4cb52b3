# SPDX-License-Identifier: Apache-2.0
"""Accounts from one cycle to the next."""

from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from msgspec import structs

from amp_nova.accounting.accounts import Accounts, advance, of_instance
from amp_nova.accounting.delivery import CAUSES, Conditions
from amp_nova.agent.loop import Loop
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Counts, Domain, DomainReading, Observation, VcpuReading
from amp_nova.model.topology import CoreType, PCpu, Topology
from tests.support import hosts

KEY = ("vm", 0)
HALF = VcpuBooking(0, 0.5)
approx = pytest.approx


class Kept:
    """Accounts as the loop carries them from observation to observation."""

    def __init__(self, conditions):
        self.value = Accounts().under(conditions)

    def enter(self, seen):
        self.value = advance(self.value, seen)

    def agree(self, conditions):
        self.value = self.value.under(conditions)

    def account(self, key):
        return self.value.of(key)

    def ratios(self, resource):
        indices = self.value.entries.get(resource, {})
        return of_instance(self.value.of((resource, i)).ratios for i in indices)


@pytest.fixture
def host():
    """One vCPU that spins, held at half a slow core."""
    host = hosts.FakeHost()
    host.add("vm")
    host.vcpu("vm").bandwidth = hosts.limit(0.5)
    return host


@pytest.fixture
def accounts(host):
    """Books that know the terms and have seen the host once."""
    accounts = Kept({KEY: Conditions(0, 2, 1.0, HALF)})
    accounts.enter(host.observe())
    return accounts


def cycles(accounts, host, count=1, seconds=1.0):
    for _ in range(count):
        host.wait(seconds)
        accounts.enter(host.observe())


def test_without_terms_nothing_is_accounted(accounts, host):
    """A vCPU that is on no one core type cannot be accounted, and keeps what it had."""
    cycles(accounts, host)
    accounts.agree({})
    cycles(accounts, host)

    assert accounts.account(KEY).ref_s == approx(0.5)


def restarted(host):
    """Its counters begin at zero, and have come far when it is seen again."""
    host.restart("vm")
    host.vcpu("vm").bandwidth = hosts.limit(0.5)
    host.vcpu("vm").run_ns = 10**12


def unreadable(host):
    """Its threads cannot be read once."""
    host.domains["vm"].failure = "its threads cannot be read"


def rewound(host):
    """A counter goes backwards."""
    host.vcpu("vm").run_ns -= 10**12


def clock_back(host):
    """The clock goes backwards."""
    host.time_ns -= 10**12


@pytest.mark.parametrize("disturbance", [restarted, unreadable, rewound, clock_back])
def test_an_interval_that_cannot_be_known_is_lost_and_nothing_else(accounts, host, disturbance):
    """What it had stays, and what follows is accounted."""
    cycles(accounts, host)
    disturbance(host)
    cycles(accounts, host)
    assert accounts.account(KEY).ref_s == approx(0.5)

    host.domains["vm"].failure = None
    cycles(accounts, host, 2 if disturbance is unreadable else 1)
    assert accounts.account(KEY).ref_s == approx(1.0)
    assert sum(accounts.account(KEY).shortfall_ref_s) == approx(0.0)


def test_a_domain_that_left_and_came_back_starts_anew(accounts, host):
    """Its account ends with it; the time it was away is nobody's."""
    cycles(accounts, host, 3)
    gone = host.domains.pop("vm")
    cycles(accounts, host)
    assert accounts.account(KEY).ref_s == 0.0
    assert accounts.ratios("vm").total == 0.0

    host.domains["vm"] = gone
    cycles(accounts, host)
    assert accounts.account(KEY).ref_s == 0.0
    cycles(accounts, host)
    assert accounts.account(KEY).ref_s == approx(0.5)


def test_a_clock_that_leaps(accounts, host):
    """An hour that nobody lived through (a suspended host) owes nothing."""
    cycles(accounts, host)
    host.time_ns += 3_600 * 10**9
    cycles(accounts, host)

    assert accounts.account(KEY).ref_s == approx(1.0)
    assert sum(accounts.account(KEY).shortfall_ref_s) == approx(0.0)


@pytest.mark.parametrize(("percent", "cause"), [(40, "throttle"), (50, "contention")])
def test_what_a_limit_above_takes_is_throttled(percent, cause):
    """If it is less than what the vCPUs below it book: their own groups count nothing of it."""
    host = hosts.FakeHost()
    host.add("vm", {"pref_core": "0.5"}).vcpus[0].starved = 0.8
    ceiling = ("machine.slice", Bandwidth(percent * 1000, 100_000))

    def observe():
        seen = host.observe()
        (only,) = seen.domains
        return replace(seen, domains=(structs.replace(only, ceilings=(ceiling,)),))

    loop = Loop(SimpleNamespace(observe=observe, sample=host.sample), host)
    for _ in range(5):
        short_ref_s = loop.cycle().accounts.of(KEY).shortfall_ref_s
        host.wait()

    assert [c for c, n in zip(CAUSES, short_ref_s, strict=True) if n > 0.0] == [cause]


class TestSleepers:
    """vCPUs that did not run: their accounts are brought up to date when they are read."""

    CONDITIONS = (
        Conditions(0, 2, 1.0, HALF, 0.1),
        Conditions(1, 2, 2.0, VcpuBooking(0, 0.25), 0.1),
        Conditions(0, 2, 1.0, VcpuBooking(0, 0.75)),
        Conditions(0, 2, 1.0, VcpuBooking(0, ips=1e9), core_type=CoreType("slow", nominal_ips=2e9)),
        Conditions(0, 2, 1.0),
    )
    SUMS = ("cpu_s", "ref_s", "shortfall_ref_s", "balance")

    @staticmethod
    def history(random, seconds):
        """Observations of one domain with as many vCPUs as there are conditions, asleep mostly."""
        core_types = (CoreType("slow", 1.0), CoreType("fast", 2.0))
        pcpus = (PCpu(0, "slow"), PCpu(1, "fast"))
        topology = Topology(core_types, pcpus, "slow", "configuration")
        domain, now_ns = Domain("vm", "vm", 5), 0
        pair = frozenset({0}), frozenset({0, 1})
        vcpus = [VcpuReading(i, 0, 0, 0, None, *pair, counts=Counts(0)) for i in range(5)]
        reading = DomainReading(domain, tuple(vcpus))
        for _ in range(seconds):
            now_ns += random.choice([1.0, 1.0, 1.01, 0.02]) * 10**9 // 1
            ran = [i for i in range(5) if random.random() < 0.15]
            for i in ran:
                run_ns, wait_ns = random.randrange(10**9), random.randrange(5 * 10**8)
                vcpus[i] = structs.replace(
                    vcpus[i],
                    run_ns=vcpus[i].run_ns + run_ns,
                    wait_ns=vcpus[i].wait_ns + wait_ns,
                    counts=Counts(vcpus[i].counts.instructions + 2 * run_ns),
                )
            if ran:
                reading = DomainReading(domain, tuple(vcpus))
            yield Observation(int(now_ns), topology, (reading,))

    @pytest.mark.parametrize("seed", range(8))
    def test_accounts_are_as_if_brought_up_to_date_in_every_interval(self, seed):
        """Whenever one is read, also across a change of conditions in the middle of a sleep."""
        random = Random(seed)
        lazy, eager = Kept({}), Kept({})
        for number, seen in enumerate(self.history(random, 200)):
            lazy.enter(seen)
            eager.enter(seen)
            entries = {
                i: structs.replace(e, time_ns=seen.time_ns, account=e.account_at(seen.time_ns))
                for i, e in eager.value.entries["vm"].items()
            }
            eager.value = replace(eager.value, entries={"vm": entries})
            if number % 90 == 0:
                start = number // 90
                conditions = {("vm", i): self.CONDITIONS[(i + start) % 5] for i in range(5)}
                lazy.agree(conditions)
                eager.agree(conditions)
            if random.random() < 0.1:
                for i in range(5):
                    found, want = lazy.account(("vm", i)), eager.account(("vm", i))
                    for name in self.SUMS:
                        assert getattr(found, name) == approx(getattr(want, name)), name
                    assert found.delivery.wall_s == approx(want.delivery.wall_s)
                    assert found.delivery.owed == approx(want.delivery.owed)
                    assert found.recent.cpu_s == approx(want.recent.cpu_s)
                    assert found.recent.demand_s == approx(want.recent.demand_s)
                    minutes = [sum(a.ratios.counts) for a in (found, want)]
                    assert abs(minutes[0] - minutes[1]) <= 1  # a minute may begin elsewhere
