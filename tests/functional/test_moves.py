# SPDX-License-Identifier: Apache-2.0
"""A booking moves with its instance, and is enforced from the first cycle on arrival."""

from typing import ClassVar

from tests.functional.cloud import CloudTestCase
from tests.support.hosts import state


class MovesTest(CloudTestCase):
    """Two hosts, each with a slow core and a fast one that is twice as fast."""

    HOSTS: ClassVar = {
        "host1": {"slow": (1, 1.0), "fast": (1, 2.0)},
        "host2": {"slow": (1, 1.0), "fast": (1, 2.0)},
    }

    def boot_on(self, host, flavor):
        """An instance on a given host, known to its agent."""
        server = self.boot(flavor, az=f"nova:{host}")
        assert self.host_of(server) == host
        self.cycle(host)
        return server

    def assert_kept(self, server, host, pcpus, cores):
        """Only this host's agent enforces the booking, with these pCPUs and this limit."""
        self.cycle()
        for name, agent in self.agents.items():
            here = state(agent.host).get((server["id"], 0))
            assert here == ((pcpus, cores) if name == host else None), (name, here)

    def test_live_migration(self):
        """It goes only where it fits, and is limited by the new host's coefficient."""
        flavor = self.flavor(pref_core="1.5")
        server = self.boot_on("host1", flavor)
        self.assert_kept(server, "host1", [1], 0.75)
        other = self.boot_on("host2", flavor)

        body = {"os-migrateLive": {"host": None, "block_migration": "auto"}}
        self.api.api_post(f"/servers/{server['id']}/action", body, check_response_status=[202])
        migration = self._wait_for_migration_status(server, ["error"])
        assert migration["status"] == "error"
        self._wait_for_state_change(server, "ACTIVE")
        assert self.host_of(server) == "host1"

        self._delete_server(other)
        self.cycle("host2")
        server = self._live_migrate(server)
        assert self.host_of(server) == "host2"
        self.assert_kept(server, "host2", [1], 0.75)

    def test_cold_migration_and_a_resize_to_a_size_that_fits_nowhere(self):
        """To the other host, where its limit is set again; the resize changes nothing."""
        server = self.boot_on("host1", self.flavor(pref_core="1.5"))

        body = {"resize": {"flavorRef": self.flavor(pref_core="3")}}
        self.api.post_server_action(server["id"], body, check_response_status=[202])
        self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
        assert self.host_of(server) == "host1"
        self.assert_kept(server, "host1", [1], 0.75)

        server = self._migrate_server(server)
        assert self.host_of(server) == "host2"
        server = self._confirm_resize(server)
        self.assert_kept(server, "host2", [1], 0.75)

    def test_resize_on_the_same_host_uses_its_own_share_again(self):
        """1.5 of the 2 are its own: 2 fit, although only 0.5 are free."""
        self.flags(allow_resize_to_same_host=True)
        server = self.boot_on("host1", self.flavor(pref_core="1.5"))
        self.boot_on("host2", self.flavor(pref_core="1.5"))

        self._resize_server(server, self.flavor(pref_core="2"))
        assert self.host_of(server) == "host1"
        server = self._confirm_resize(server)

        self.assert_kept(server, "host1", [1], None)

    def test_evacuate(self):
        """From a failed host to one with the capacity."""
        server = self.boot_on("host1", self.flavor(pref_core="1.5"))
        self.computes["host1"].stop()
        service = self.api.get_services(binary="nova-compute", host="host1")[0]["id"]
        self.api.put_service_force_down(service, True)

        server = self._evacuate_server(server, expected_host="host2", expected_state="SHUTOFF")
        server = self._start_server(server)

        self.cycle("host2")
        assert state(self.agents["host2"].host)[server["id"], 0] == ([1], 0.75)

    def test_shelve_and_unshelve(self):
        """While shelved it holds no capacity; unshelving places it again."""
        server = self.boot_on("host1", self.flavor(pref_core="1.5"))
        self._shelve_server(server)
        self.cycle()
        taker = self.boot_on("host1", self.flavor(pref_core="2"))

        server = self._unshelve_server(server)

        assert self.host_of(taker) == "host1"
        assert self.host_of(server) == "host2"
        self.assert_kept(server, "host2", [1], 0.75)

    def test_a_stopped_instance_keeps_its_capacity(self):
        """Nova starts it without asking the scheduler, even one that was restarted meanwhile."""
        flavor = self.flavor(pref_core="1.5")
        server = self.boot_on("host1", flavor)
        self.boot_on("host2", flavor)

        self._stop_server(server)
        self.cycle("host1")
        self.boot(flavor, state="ERROR")
        self.restart_scheduler()
        self.boot(flavor, state="ERROR")
        server = self._start_server(server)
        self.assert_kept(server, "host1", [1], 0.75)

        self._stop_server(server)
        self.cycle("host1")
        self._delete_server(server)
        self.cycle("host1")
        assert self.host_of(self.boot(flavor)) == "host1"

    def test_rebuild_and_reboot_stay_where_they_are(self):
        """Even on a host whose agent is silent, since they need no new capacity."""
        server = self.boot_on("host1", self.flavor(pref_core="1.5"))
        self.flags(stale_after_s=1.0, group="amp_scheduler")
        self.wait_until(
            lambda: not self.states.entry("host1").usable(self.states.oldest_s()),
            "the report becomes stale",
        )

        self._rebuild_server(server, "a2459075-d96c-40d5-893e-577ff92e721c")
        self._reboot_server(server, hard=True)
        self._reboot_server(server)

        self.flags(stale_after_s=180.0, group="amp_scheduler")
        assert self.host_of(server) == "host1"
        self.assert_kept(server, "host1", [1], 0.75)
