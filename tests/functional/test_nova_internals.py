# SPDX-License-Identifier: Apache-2.0
"""What ``AmpCapacityFilter`` relies on in Nova without an interface for it.

If one of these fails after an upgrade of Nova, concurrent requests can get the same capacity where
flavors claim nothing in Placement. doc/source/contributor/nova-spec.rst says what Nova would have
to offer instead.
"""

from typing import ClassVar
from unittest import mock

from nova.scheduler import utils
from nova.scheduler.host_manager import HostManager

from amp_nova.nova_plugins import filters
from amp_nova.nova_plugins.filters import AmpCapacityFilter, _Attempt
from tests.functional.cloud import CloudTestCase

ONE = {"slow": (1, 1.0)}


class NovaInternalsTest(CloudTestCase):
    HOSTS: ClassVar = {"host1": ONE, "host2": ONE}

    def setUp(self):
        super().setUp()
        self.calls = []
        self.record(AmpCapacityFilter, "_filtered", "filtered", lambda *_: "")
        self.record(_Attempt, "reserve", "examined", lambda _self, host: host.nodename)
        self.record(utils, "claim_resources", "claimed", lambda *_: "")
        self.record(_Attempt, "chose", "consumed", lambda _self, host, *_: host.nodename)

    def record(self, owner, name, event, detail):
        """Note each call of a function, with a detail of its arguments, before it happens."""
        real = getattr(owner, name)

        def recorded(*args, **more):
            self.calls.append((event, detail(*args)))
            return real(*args, **more)

        patched = mock.patch.object(owner, name, recorded)
        patched.start()
        self.addCleanup(patched.stop)

    def pending(self):
        """The hosts on which anything is pending."""
        return {name for name in self.HOSTS if self.states.entry(name).pending}

    def test_the_host_is_examined_before_its_claim_and_alternates_after_it_is_consumed(self):
        """That of the host that Nova turns to, after all filters and weighers.

        Alternates later, so that it is known by then what they are: they are refused.
        """
        server = self.boot(self.flavor(pref_core="0.5"))
        host = self.host_of(server)

        consumed = self.calls.index(("consumed", host)) + 1
        before, after = self.calls[:consumed], self.calls[consumed:]

        assert before == [("filtered", ""), ("examined", host), ("claimed", ""), ("consumed", host)]
        (other,) = self.HOSTS.keys() - {host}
        assert after == [("examined", other)]
        assert self.pending() == {host}

    def test_the_instances_of_one_request_have_no_alternates_either(self):
        """Nova filters once more for these, after it has chosen all hosts."""
        for one in self.boot_several(2, flavor_id=self.flavor(pref_core="0.5")):
            self._wait_for_state_change(one, "ACTIVE")

        consumed = [at for at, (event, _) in enumerate(self.calls) if event == "consumed"]
        assert len(consumed) == 2
        assert {event for event, _ in self.calls[consumed[-1] + 1 :]} <= {"filtered", "examined"}
        assert len(self.states.pending()) == 2

    def test_a_host_without_candidates_is_skipped_without_a_claim(self):
        """The capacity of the first host is taken between the filter and the claim."""
        refused = []
        real = filters._Candidates.__bool__

        def first_refuses(candidates):
            if not refused:
                refused.append(candidates)
                return False
            return real(candidates)

        with mock.patch.object(filters._Candidates, "__bool__", first_refuses):
            self.boot(self.flavor(pref_core="0.5"))

        assert refused
        assert [event for event, _ in self.calls].count("claimed") == 1

    def test_a_later_filter_that_replaces_the_candidates_is_named_in_a_warning(self):
        """Nova's filters of candidates assign a plain list, which reserves nothing; earlier ones
        may."""
        later = ["AmpCapacityFilter", "NUMATopologyFilter", "ComputeFilter", "PciPassthroughFilter"]
        self.flags(enabled_filters=later, group="filter_scheduler")

        with self.assertLogs(filters.LOG, "WARNING") as logged:
            HostManager()

        (record,) = logged.records
        text = record.getMessage()
        assert "NUMATopologyFilter and PciPassthroughFilter in [filter_scheduler]" in text
        assert "move AmpCapacityFilter to the end" in text

        earlier = ["NUMATopologyFilter", "PciPassthroughFilter", "AmpCapacityFilter"]
        self.flags(enabled_filters=[*earlier, "ComputeFilter"], group="filter_scheduler")
        with self.assertNoLogs(filters.LOG, "WARNING"):
            HostManager()
