# SPDX-License-Identifier: Apache-2.0
"""One control cycle over a fake host: what a user of the agent sees happen."""

from dataclasses import replace

import pytest

from amp_nova.accounting.delivery import RATIO_BUCKETS
from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.agent.operator import status
from amp_nova.control import foreign_changes
from amp_nova.control.context import Terms
from amp_nova.model.observation import TAMPERED
from tests.support import hosts
from tests.support.hosts import FakeHost, state
from tests.support.policy_runs import Answer

approx = pytest.approx


def loop(host, answers=None, **settings):
    """A loop with a policy, if given, and some settings."""
    return Loop(host, host, LoopSettings(**settings), answers)


def cycles(loop, host, count=1, seconds=1.0):
    """Run some cycles with time between them; the last report."""
    for _ in range(count):
        host.wait(seconds)
        report = loop.cycle()
    return report


def vcpu(report, resource="vm", index=0):
    """What a record says of one vCPU."""
    (domain,) = (d for d in report.domains if d.domain.resource == resource)
    return next(v for v in domain.vcpus if v.reading.index == index)


def problem(report, resource="vm"):
    (domain,) = (d for d in report.domains if d.domain.resource == resource)
    return domain.problem


@pytest.fixture
def host():
    """Two slow pCPUs (0, 1), a fast one (2); one instance that books half a reference core."""
    host = FakeHost()
    host.add("vm", {"pref_core": "0.5"})
    return host


class TestRecord:
    @pytest.mark.parametrize(("uncounted", "missed"), [(TAMPERED, 0), ("no permission", 1)])
    def test_a_vcpu_whose_qemu_divides_its_limit_misses_no_minute(self, host, uncounted, missed):
        """It could page the operator. What it ran is in the records all the same."""
        agent = loop(host)
        cycles(agent, host)
        host.vcpu("vm").uncounted, host.vcpu("vm").starved = uncounted, 0.9

        account = vcpu(cycles(agent, host, 63)).account

        assert sum(account.ratios.counts[: RATIO_BUCKETS.index(0.95) + 1]) == missed
        assert account.ref_s > 6.0

    def test_migrations_are_counted_by_type(self):
        """A move between core types counts; the first placement, from anywhere, does not."""
        host = FakeHost()
        host.add("old", {"pref_core": "1"}, allowed={1, 2})
        host.vcpu("old").pcpus = frozenset({2})
        agent = loop(host)
        assert cycles(agent, host).totals.migrations == {}

        host.add("new", {"pref_core": "2"})
        report = cycles(agent, host)

        assert report.totals.migrations == {("fast", "slow"): 1}
        assert state(host)["old", 0] == ([1], None)


class TestBadInput:
    @pytest.mark.parametrize(
        ("said", "domain"),
        [
            ("amp:", {"specs": {"pref_core": "\x00\n"}}),
            ("its metadata is no XML", {"problem": "its metadata is no XML"}),
        ],
    )
    def test_garbage_is_best_effort_until_it_is_mended(self, host, said, domain, caplog):
        """With a problem that is reported and logged once; nobody else notices."""
        host.add("bad", **domain)
        agent = loop(host)

        report = cycles(agent, host, 3)

        assert said in problem(report, "bad")
        assert vcpu(report, "bad").entitlement.booking.kind == "best_effort"
        assert state(host)["bad", 0] == ([0, 1, 2], None)
        assert state(host)["vm", 0] == ([0, 1], 0.5)
        assert problem(report) is None
        assert caplog.text.count("name-bad is treated as best effort") == 1

        mended = replace(host.domains["bad"].domain, specs={"amp:pref_core": "0.25"}, problem=None)
        host.domains["bad"].domain = mended
        report = cycles(agent, host)

        assert problem(report, "bad") is None
        assert state(host)["bad", 0] == ([0, 1], 0.25)


class TestFailures:
    def test_one_failure_is_reported_and_retried(self, host):
        """In every cycle until it works; it is nobody's drift, and the others get theirs."""
        host.add("other", {"pref_core": "0.25"})
        host.refuses = {("vm", 0)}
        agent = loop(host)

        report = cycles(agent, host)
        assert vcpu(report).failure == "it is read-only"
        assert vcpu(report, "other").failure is None
        assert state(host)["other", 0] == ([0, 1], 0.25)

        report = cycles(agent, host, 3)
        assert report.totals.failures == {"refused": 4}
        assert report.totals.writes == 4  # affinity and limit of one vCPU, and two weights
        assert report.totals.drift == {}

        host.refuses = set()
        report = cycles(agent, host)
        assert vcpu(report).failure is None
        assert state(host)["vm", 0] == ([0, 1], 0.5)
        assert len(cycles(agent, host).changes.vcpus) == 0


class TestForeignChanges:
    def meddle(self, host):
        host.vcpu("vm").bandwidth = hosts.limit(0.9)

    def test_not_fought_over(self, host):
        """After three repairs in a minute it is let go and noted; five minutes later taken back."""
        agent = loop(host)
        cycles(agent, host)
        for _ in range(4):
            self.meddle(host)
            report = cycles(agent, host)

        assert state(host)["vm", 0] == ([0, 1], 0.9)
        assert "somebody else keeps changing" in vcpu(report).entitlement.note
        assert len(cycles(agent, host, 4, seconds=70.0).changes.vcpus) == 0

        report = cycles(agent, host, 1, seconds=30.0)
        assert len(report.changes.vcpus) == 1
        assert state(host)["vm", 0] == ([0, 1], 0.5)
        assert vcpu(report).entitlement.note is None
        assert report.totals.drift == {"quota": 4}

    @pytest.mark.parametrize("to", [{2}, {1, 2}], ids=["fast cores", "cores of both types"])
    @pytest.mark.parametrize("back_every", [1, 2], ids=["and stays", "and goes to and fro"])
    @pytest.mark.parametrize("booked", ["0.9", "1"])
    def test_a_qemu_that_moves_its_own_threads_gets_no_more(self, host, to, back_every, booked):
        """Its limit falls to its booking on the faster cores, and does not rise again meanwhile."""
        host.domains.clear()
        host.add("vm", {"pref_core": booked, "core_type": "slow"})
        agent, evil, got_ref_s = loop(host), host.vcpu("vm"), 0.0
        cycles(agent, host)
        for second in range(900):
            evil.pcpus = frozenset(to if second % back_every == 0 else {0, 1})
            host.wait(1.0)
            got_ref_s += (evil.bandwidth.cores if evil.bandwidth else 1.0) * 2.0
            report = agent.cycle()
            if vcpu(report).entitlement.governed_by == "excluded":
                assert evil.bandwidth.cores * 2.0 <= float(booked)

        assert len(vcpu(report).entitlement.note) > 0
        # Before it is excluded, it has at most four seconds at a limit for slow cores.
        assert got_ref_s <= float(booked) * (900 + 3 * 4 * 2)

    def test_a_limit_that_somebody_else_sets_while_it_is_let_go_wins(self, host, monkeypatch):
        """Moved and limited by others: neither is fought over."""
        monkeypatch.setattr(foreign_changes, "REPAIRS_MAX", 0)
        agent = loop(host)
        cycles(agent, host)
        host.vcpu("vm").pcpus = frozenset({2})
        cycles(agent, host)
        self.meddle(host)

        report = cycles(agent, host, 3)

        assert state(host)["vm", 0] == ([2], 0.9)
        assert "changing its limits" in vcpu(report).entitlement.note

    def test_a_restart_that_kept_its_limits_is_no_drift_later(self, host):
        """A new incarnation that looks just like the old one is watched like any other."""
        agent = loop(host)
        cycles(agent, host, 2)
        kept = host.vcpu("vm").bandwidth, host.vcpu("vm").pcpus
        host.restart("vm")
        host.vcpu("vm").bandwidth, host.vcpu("vm").pcpus = kept
        assert len(cycles(agent, host).changes.vcpus) == 0
        self.meddle(host)

        assert cycles(agent, host).totals.drift == {"quota": 1}


class TestExcluded:
    def test_a_paused_instance_is_untouched_and_accounted(self, host):
        """What is done to it by hand stays until it is resumed; what it gets is reported."""
        agent = loop(host)
        cycles(agent, host)
        host.paused["vm"] = "paused for 60 s"
        host.vcpu("vm").bandwidth = hosts.limit(0.25)

        report = cycles(agent, host, 6)

        assert state(host)["vm", 0] == ([0, 1], 0.25)
        assert vcpu(report).entitlement.note == "not enforced: paused for 60 s"
        assert vcpu(report).account.last.ratio == approx(0.5)
        assert report.totals.drift == {}
        host.paused.clear()
        cycles(agent, host)
        assert state(host)["vm", 0] == ([0, 1], 0.5)

    @pytest.mark.parametrize(
        ("specs", "kept", "note"),
        [
            ({"pref_core": "0.5"}, [0, 1, 2], "remove that quota or the booking"),
            ({"core_type": "slow"}, [0, 1], ""),
        ],
    )
    def test_a_quota_of_its_own_is_left_alone(self, specs, kept, note):
        """It excludes a booking, and the note gives the remedy; a core type is kept."""
        host = FakeHost()
        host.add("vm", specs, limited_elsewhere=True)
        host.vcpu("vm").bandwidth = hosts.limit(0.3)

        report = cycles(loop(host), host, 2)

        assert state(host)["vm", 0] == (kept, 0.3)
        assert note in (vcpu(report).entitlement.note or "")


class TestChangingHosts:
    def test_a_hot_plugged_vcpu(self, host):
        """It gets its booking in the next cycle; the first one keeps what it has."""
        host.domains["vm"].domain = replace(host.domains["vm"].domain, vcpus=2)
        agent = loop(host)
        cycles(agent, host)
        host.plug("vm", 1)

        report = cycles(agent, host)

        assert [c.key for c in report.changes.vcpus] == [("vm", 1)]
        assert vcpu(report, index=1).entitlement.booking.refcores == 0.5
        assert state(host)["vm", 1] == ([0, 1], 0.5)

    def test_new_coefficients(self, host):
        """After a calibration quotas follow, in one cycle."""
        agent = loop(host)
        host.add("big", {"pref_core": "1.2"})
        cycles(agent, host)
        assert state(host)["big", 0] == ([2], 0.6)
        host.topology = hosts.topology({"slow": (2, 1.0), "fast": (1, 1.6)})

        cycles(agent, host)

        assert state(host)["big", 0] == ([2], 0.75)

    @pytest.mark.parametrize(
        ("book", "event"), [("0.6", "reboot"), ("0.9", "new agent"), ("1", "reboot")]
    )
    def test_a_latecomer_takes_nobodys_place(self, book, event):
        """Whoever comes to a full host is the one that finds no room, then and later."""
        host = FakeHost(hosts.topology({"only": (2, 1.0)}))
        for name in ("y", "z"):
            host.add(name, {"pref_core": "0.6"})
        agent = loop(host)
        cycles(agent, host, 2)
        host.add("a", {"pref_core": book})

        for turn in range(6):
            if event == "new agent" and turn == 3:
                agent = loop(host)
            if event == "reboot" and turn == 3:
                host.restart("z")
            report = cycles(agent, host)
            notes = {d.domain.resource for d in report.domains if d.vcpus[0].entitlement.note}
            assert notes == {"a"}
            assert [host.domains[name].cpu_weight for name in "yza"] == [500, 500, 5]

        host.domains.pop("z")
        report = cycles(agent, host)
        assert vcpu(report, "a").entitlement.note is None
        assert host.domains["a"].cpu_weight == 500


class TestPolicies:
    def test_a_policy_chooses_within_the_core_type(self):
        """Contract and policy do not take turns at one vCPU, nor is it anybody's drift."""
        host = FakeHost()
        host.add("vm", {"core_type": "slow"})
        agent = loop(host, Answer({("vm", 0): {1}}))

        changes = [len(cycles(agent, host).changes.vcpus) for _ in range(8)]

        assert sum(changes) == 1
        report = cycles(agent, host)
        assert state(host)["vm", 0] == ([1], None)
        assert report.totals.drift == {}
        assert report.totals.plans_rejected == 0


def test_bookings_that_one_limit_cannot_keep_are_left_alone_and_status_says_why():
    """As with ``writer = libvirt``; others are enforced, and have precedence over best effort."""
    host = FakeHost()
    host.add("differ", {"pref_core": "0.5", "pref_core.1": "0.2"}, vcpus=2)
    host.add("same", {"pref_core": "0.5"}, vcpus=2)
    host.add("free")

    report = cycles(loop(host, terms=Terms(one_limit=True)), host, 3)

    found = state(host)
    assert found["differ", 0] == ([0, 1, 2], None)
    assert found["same", 0][1] == found["same", 1][1] == 0.5
    weights = {name: domain.cpu_weight for name, domain in host.domains.items()}
    assert weights == {"differ": 100, "same": 1000, "free": 5}
    for index in (0, 1):
        note = vcpu(report, "differ", index).entitlement.note
        assert note.startswith("not enforced: the bookings of its vCPUs differ")
    assert any("differ" in line for line in status.explain(report, "differ")["because"])
