"""Accounts from one cycle to the next."""

from dataclasses import replace
from random import Random

import pytest

from amp_nova.accounting.delivery import CAUSES, RATIO_BUCKETS, Account, Tenure
from amp_nova.agent.state.accounts import Books
from amp_nova.model.observation import Counts, Domain, DomainReading, Observation, VcpuReading
from amp_nova.model.topology import CoreType, PCpu, Topology
from tests import hosts

KEY = ("vm", 0)
approx = pytest.approx


@pytest.fixture
def host():
    """One vCPU that spins, held at half a slow core."""
    host = hosts.FakeHost()
    host.add("vm")
    host.vcpu("vm").bandwidth = hosts.limit(0.5)
    return host


@pytest.fixture
def books(host):
    """Books that know the terms and have seen the host once."""
    books = Books(3.0)
    books.agree({KEY: Tenure(0, 2, 1.0, 0.5)})
    books.enter(host.observe())
    return books


def cycles(books, host, count=1, seconds=1.0):
    for _ in range(count):
        host.wait(seconds)
        books.enter(host.observe())


def test_the_interval_is_accounted(books, host):
    """What ran between two observations, under the terms agreed before."""
    cycles(books, host, 3)

    account = books.account(KEY)
    assert account.ref_s == approx(1.5)
    assert account.ratio == approx(1.0)


def test_ratios_of_windows_are_counted(books, host):
    """A histogram per instance, as the exporter shows it."""
    cycles(books, host, 3)
    host.vcpu("vm").starved = 0.75
    cycles(books, host, 3)

    counts, total = books.ratios("vm")
    assert len(counts) == len(RATIO_BUCKETS) + 1
    assert sum(counts) == 2
    assert counts[0] == 1
    assert total == approx(1.5)


def test_a_stranger_has_an_empty_account(books):
    """Nobody's account is nothing, not an error."""
    assert books.account(("other", 0)).ref_s == 0.0
    assert books.ratios("other")[1] == 0.0


def test_without_terms_nothing_is_accounted(books, host):
    """A vCPU that is on no one core type cannot be accounted, and keeps what it had."""
    cycles(books, host)
    books.agree({})
    cycles(books, host)

    assert books.account(KEY).ref_s == approx(0.5)


def test_a_new_incarnation_starts_from_its_own_counters(books, host):
    """After a restart the counters begin at zero: what lies between is not accounted."""
    cycles(books, host)
    host.restart("vm")
    host.vcpu("vm").bandwidth = hosts.limit(0.5)
    host.vcpu("vm").run_ns = 10**12
    cycles(books, host)
    assert books.account(KEY).ref_s == approx(0.5)

    cycles(books, host)
    assert books.account(KEY).ref_s == approx(1.0)


def test_counters_that_go_backwards_are_not_accounted(books, host):
    """Nor do they spoil what follows."""
    cycles(books, host)
    host.vcpu("vm").run_ns = 0
    cycles(books, host)
    cycles(books, host)

    assert books.account(KEY).ref_s == approx(1.0)


def test_a_domain_that_left_and_came_back_starts_anew(books, host):
    """Its account ends with it; the time it was away is nobody's."""
    cycles(books, host, 3)
    gone = host.domains.pop("vm")
    cycles(books, host)
    assert books.account(KEY).ref_s == 0.0
    assert books.ratios("vm")[1] == 0.0

    host.domains["vm"] = gone
    cycles(books, host)
    assert books.account(KEY).ref_s == 0.0
    cycles(books, host)
    assert books.account(KEY).ref_s == approx(0.5)


def test_a_domain_that_could_not_be_read_keeps_its_account(books, host):
    """One failed reading is no end; what ran meanwhile is not known."""
    cycles(books, host)
    host.domains["vm"].failure = "its threads cannot be read"
    cycles(books, host)
    assert books.account(KEY).ref_s == approx(0.5)

    host.domains["vm"].failure = None
    cycles(books, host, 2)
    assert books.account(KEY).ref_s == approx(1.0)


@pytest.mark.parametrize("leap_ns", [-(10**12), -(10**9)])
def test_a_clock_that_goes_back(books, host, leap_ns):
    """That interval is lost, nothing else."""
    cycles(books, host)
    host.time_ns += leap_ns
    cycles(books, host, 2)

    assert books.account(KEY).ref_s == approx(1.0)
    assert sum(books.account(KEY).shortfall_ref_s) == approx(0.0)


def test_a_clock_that_leaps(books, host):
    """An hour that nobody lived through (a suspended host) owes nothing."""
    cycles(books, host)
    host.time_ns += 3_600 * 10**9
    cycles(books, host)

    assert books.account(KEY).ref_s == approx(1.0)
    assert sum(books.account(KEY).shortfall_ref_s) == approx(0.0)


def test_only_the_one_that_is_unwell_is_skipped(host):
    """One domain's bad counters do not touch another's account."""
    host.add("other")
    books = Books(3.0)
    books.agree({(name, 0): Tenure(0, 2, 1.0, 0.5) for name in ("vm", "other")})
    books.enter(host.observe())
    host.wait()
    seen = host.observe()
    bad = replace(seen.domains[0].vcpus[0], run_ns=-1)
    books.enter(replace(seen, domains=(replace(seen.domains[0], vcpus=(bad,)), seen.domains[1])))

    assert books.account(KEY).ref_s == 0.0
    assert books.account(("other", 0)).ref_s == approx(1.0)


def test_neighbours_on_the_same_core_cost_what_the_calibration_says():
    """Two that share a core's threads; the third has a core to itself and loses nothing."""
    types = (CoreType("p", 1.0, smt_busy_factor=0.6),)
    pcpus = tuple(PCpu(i, "p", (i // 2 * 2, i // 2 * 2 + 1)) for i in range(4))
    host = hosts.FakeHost(topology=Topology(types, pcpus, "p", "test"))
    for number, name in enumerate(("one", "two", "three")):
        host.add(name)
        host.vcpu(name).pcpus = frozenset({number})
    books = Books(3.0)
    books.agree({(n, 0): Tenure(0, 1, 1.0, 0.75, 0.0, None, 0.6) for n in host.domains})
    for _ in range(4):
        books.enter(host.observe())
        host.wait()

    accounts = {name: books.account((name, 0)) for name in host.domains}
    delivered = {name: a.delivered_refcores for name, a in accounts.items()}
    smt = {n: a.shortfall_ref_s[CAUSES.index("smt")] for n, a in accounts.items()}

    assert delivered == {"one": approx(0.6), "two": approx(0.6), "three": approx(1.0)}
    assert smt == {"one": approx(0.45), "two": approx(0.45), "three": 0.0}


class TestSleepers:
    """vCPUs whose readings are the very same as before, which hosts give for those that slept."""

    TERMS = (
        Tenure(0, 2, 1.0, 0.5, 0.1),
        Tenure(1, 2, 2.0, 0.25, 0.1),
        Tenure(0, 2, 1.0, 0.5, 0.0, burst_s=2.0),
        Tenure(0, 2, 1.0, ips=1e9, nominal_ips=2e9),
        Tenure(0, 2, 1.0),
    )

    @staticmethod
    def history(random, seconds):
        """Observations of one domain with as many vCPUs as there are terms, asleep mostly."""
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
                vcpus[i] = replace(
                    vcpus[i],
                    run_ns=vcpus[i].run_ns + run_ns,
                    wait_ns=vcpus[i].wait_ns + wait_ns,
                    counts=Counts(vcpus[i].counts.instructions + 2 * run_ns),
                )
            if ran:
                reading = DomainReading(domain, tuple(vcpus))
            yield Observation(int(now_ns), topology, (reading,))

    @pytest.mark.parametrize("seed", range(8))
    def test_their_accounts_are_as_if_settled_in_every_interval(self, seed):
        """Whenever one asks, also across a change of terms in the middle of a sleep."""
        random = Random(seed)
        lazy, eager = Books(3.0), Books(3.0)
        for number, seen in enumerate(self.history(random, 200)):
            (reading,) = seen.domains
            fresh = replace(reading, vcpus=tuple(replace(v) for v in reading.vcpus))
            lazy.enter(seen)
            eager.enter(replace(seen, domains=(fresh,)))
            if number % 90 == 0:
                start = number // 90
                terms = {("vm", i): self.TERMS[(i + start) % 5] for i in range(5)}
                lazy.agree(terms)
                eager.agree(terms)
            if random.random() < 0.1:
                for i in range(5):
                    found, want = lazy.account(("vm", i)), eager.account(("vm", i))
                    for name in Account.__slots__:
                        if name != "recent":
                            assert getattr(found, name) == approx(getattr(want, name)), name
                    assert found.recent.cpu_s == approx(want.recent.cpu_s)
                    assert found.recent.demand_s == approx(want.recent.demand_s)
                assert lazy.ratios("vm")[0] == eager.ratios("vm")[0]
