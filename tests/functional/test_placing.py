"""A booked instance is placed where its capacity is free, and refused elsewhere."""

from typing import ClassVar

from amp_nova.nova_plugins import report_server
from tests.functional.cloud import CloudTestCase


class PlacingTest(CloudTestCase):
    HOSTS: ClassVar = {"small": {"slow": (1, 1.0)}, "fast": {"slow": (1, 1.0), "fast": (1, 2.0)}}

    def test_only_the_host_with_the_capacity_takes_it(self):
        """1.5 reference cores need a fast core, which only one host has."""
        flavor = self.flavor(pref_core="1.5")

        server = self.boot(flavor)
        self.cycle()

        assert self.host_of(server) == "fast"
        self.boot(flavor, state="ERROR")

    def test_decisions_count_before_agents_report_them(self):
        """Two slow cores, and a fast one worth two of them, hold four instances of 1."""
        flavor = self.flavor(pref_core="1")

        servers = []
        for _ in range(4):
            servers.append(self.boot(flavor))
            report_server.shared().follow_up()  # the alternates of the build are over
        self.boot(flavor, state="ERROR")

        hosts = sorted(self.host_of(server) for server in servers)
        assert hosts == ["fast", "fast", "fast", "small"]
