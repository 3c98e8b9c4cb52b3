# SPDX-License-Identifier: Apache-2.0
"""What agents offer in Placement, and what servers claim of it."""

import re

from tempest import config
from tempest.lib import decorators

from amp_nova_tempest_plugin import prometheus
from amp_nova_tempest_plugin.tests import bookings

CONF = config.CONF


@decorators.serial  # what is free on a host must not change meanwhile
class PlacementTest(bookings.BookingsTest):
    """Inventories, claims, and that no host is over-booked."""

    @classmethod
    def skip_checks(cls) -> None:
        super().skip_checks()
        if not CONF.amp_nova.claims:
            raise cls.skipException("[amp_nova] claims is false: flavors claim nothing.")

    def setUp(self) -> None:
        """Look up the hosts in service, and their agents' providers by host and core type."""
        super().setUp()
        hypervisors = self.os_admin.hypervisor_client.list_hypervisors()["hypervisors"]
        self.hosts = {
            each["hypervisor_hostname"]
            for each in hypervisors
            if (each["state"], each["status"]) == ("up", "enabled")
        }
        every = self.providers_client.list_resource_providers()["resource_providers"]
        names = {provider["uuid"]: provider["name"] for provider in every}
        self.core_types = {
            (host, provider["name"].removeprefix(f"{host}_amp_")): provider
            for provider in every
            if (host := names.get(provider["parent_provider_uuid"])) in self.hosts
            and provider["name"].startswith(f"{host}_amp_")
        }
        self.assertNotEqual({}, self.core_types, "no agent offers anything in Placement")

    @staticmethod
    def trait(core_type: str) -> str:
        """The trait of a core type's providers."""
        return "CUSTOM_AMP_CORE_" + re.sub(r"\W", "_", core_type.upper(), flags=re.ASCII)

    def amounts(self, provider: str) -> tuple[int, int]:
        """What a provider offers in all, and what is claimed of it, in thousandths."""
        client, name = self.providers_client, bookings.RESOURCE_CLASS
        inventory = client.list_resource_provider_inventories(provider)["inventories"][name]
        used = client.list_resource_provider_usages(provider)["usages"][name]
        return inventory["total"] - inventory["reserved"], used

    @decorators.idempotent_id("f3414c1c-fed0-492f-a887-96c7f1c86360")
    def test_agents_offer_the_core_types_of_their_hosts(self) -> None:
        """A provider with a trait for each core type that Prometheus knows, and for no other."""
        series = prometheus.query("amp_core_type_coefficient_ratio")
        exported = {(labels.get("host"), labels["core_type"]) for labels, _ in series}

        self.assertEqual({e for e in exported if e[0] in self.hosts}, {*self.core_types})

        for (_, core_type), provider in self.core_types.items():
            offered, claimed = self.amounts(provider["uuid"])
            self.assertLessEqual(claimed, offered, provider["name"])
            traits = self.providers_client.list_resource_provider_traits(provider["uuid"])
            self.assertIn(self.trait(core_type), traits["traits"])

    @decorators.idempotent_id("0702c3ed-3ccc-4c4f-822f-e349f5eebd47")
    def test_a_server_claims_its_booking_while_it_exists(self) -> None:
        """Of one core type of its host; Placement frees it when the server is deleted."""
        server = self.boot(self.mrefcores)

        self.check_claimed(server, self.mrefcores)

        self.delete(server)
        self.assertEqual({}, self.claims(server))

    @decorators.idempotent_id("5aa476e7-af5d-43a2-979a-9b7886edf710")
    def test_bookings_never_exceed_what_a_host_offers(self) -> None:
        """Two servers that each book more than half of what is free: one of them is refused."""
        amounts = {key: self.amounts(p["uuid"]) for key, p in self.core_types.items()}
        offering = [key for key, (offered, _) in amounts.items() if offered]
        # The emptiest; of those, the smallest.
        host, core_type = min(offering, key=lambda k: (amounts[k][1] / amounts[k][0], amounts[k]))
        (offered, claimed), provider = amounts[host, core_type], self.core_types[host, core_type]
        root = provider["parent_provider_uuid"]
        resources = self.providers_client.list_resource_provider_inventories(root)["inventories"]
        vcpus = resources["VCPU"]["max_unit"]
        mrefcores = (offered - claimed) // (2 * vcpus) + 1
        trait = {f"trait_AMP:{self.trait(core_type)}": "required"}
        flavor = self.flavor(mrefcores, vcpus, **trait, **{"amp:core_type": core_type})

        servers = [self.create(flavor, hypervisor_hostname=host) for _ in range(2)]
        placed = [server for server in servers if self.placed(server)]

        self.assertEqual(1, len(placed), f"each books {vcpus} times {mrefcores} on {host}")
        self.check_reported(placed[0])
        self.check_claimed(placed[0], mrefcores * vcpus)
        self.assertLessEqual(self.amounts(provider["uuid"])[1], offered)
        over_booked = f'amp_host_unenforced_vcpus{{host="{host}", reason="over_booked"}} > 0'
        self.assertEqual([], prometheus.query(over_booked))
