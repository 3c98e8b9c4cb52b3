"""A booked instance is placed where its capacity is free, and refused elsewhere."""

from typing import ClassVar

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
