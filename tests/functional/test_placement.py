# SPDX-License-Identifier: Apache-2.0
"""A host's capacity in Placement: inventories follow the host, and claims never over-book."""

import importlib.metadata
from typing import ClassVar

import keystoneauth1.adapter
import keystoneauth1.session
import pytest
from nova.tests.fixtures.nova import UnifiedLimitsFixture
from nova.tests.functional.api.client import OpenStackApiException

from amp_nova.agent.publish.host_info import unclaimed_refcores
from amp_nova.agent.publish.placement import Inventory
from amp_nova.flavor.extra_specs import parse
from amp_nova.flavor.placement_resources import PLACEMENT_CLASS, placement, provider_uuid, providers
from amp_nova.hardware.effective_speed import bookable_refcores
from tests.functional.cloud import CloudTestCase
from tests.support import hosts

NOVA = int(importlib.metadata.version("nova").partition(".")[0])
TYPES = {"slow": (2, 1.0), "fast": (1, 2.0)}


class PlacementTestCase(CloudTestCase):
    """A cloud whose agents keep providers in Placement."""

    HOSTS: ClassVar = {"host1": TYPES}

    def _setup_compute_service(self):
        super()._setup_compute_service()
        self.inventories = {name: Inventory(self.client(), name) for name in self.HOSTS}
        for name in self.HOSTS:
            self.offer(name)

    def client(self):
        """The agent's client of Placement, without Keystone."""
        return keystoneauth1.adapter.Adapter(
            keystoneauth1.session.Session(auth=None),
            endpoint_override=self.placement.fixture.endpoint,
            additional_headers={"x-auth-token": self.placement.fixture.token},
            raise_exc=False,
        )

    def offer(self, name, topology=None, reserve_ratio=0.0, counts_ips=False):
        """Have a host's agent synchronise Placement."""
        topology = topology or self.agents[name].host.topology
        bookable = frozenset(p.id for p in topology.pcpus)
        capacity, last = bookable_refcores(topology, bookable), self.agents[name].last
        offered = providers(
            name, capacity, reserve_ratio, counts_ips, unclaimed_refcores(last) if last else {}
        )
        self.inventories[name].sync(offered)

    def inventory(self, core_type, name="host1"):
        """Total and reserved of one provider, ``None`` where there is none."""
        url = f"/resource_providers/{provider_uuid(name, core_type)}/inventories"
        answer = self.placement.get(url, version="1.36")
        if answer.status == 404:
            return None
        found = answer.body["inventories"].get(PLACEMENT_CLASS)
        return found and (found["total"], found["reserved"])

    def claimed_flavor(self, vcpus=1, **specs):
        """A flavor with the properties that ``amp-nova flavor check`` prints."""
        extra = {f"amp:{key}": str(value) for key, value in specs.items()}
        extra |= placement(parse(extra, vcpus))
        return self._create_flavor(vcpu=vcpus, memory_mb=64, disk=0, ephemeral=0, extra_spec=extra)


class InventoryTest(PlacementTestCase):
    def test_inventories_follow_the_host(self):
        """Calibration, offline pCPUs, the reserve; a core type that is all offline is closed.

        If nothing changed nothing is written, so the generation stays the same.
        """
        assert self.inventory("slow") == (2000, 0)
        assert self.inventory("fast") == (2000, 0)

        url = f"/resource_providers/{provider_uuid('host1', 'slow')}"
        before = self.placement.get(url, version="1.36").body["generation"]
        self.offer("host1")
        assert self.placement.get(url, version="1.36").body["generation"] == before

        self.offer("host1", hosts.topology({"slow": (2, 1.0), "fast": (1, 2.35)}), 0.1)
        assert self.inventory("fast") == (2350, 235)

        self.offer("host1", hosts.topology(TYPES, offline=(1, 2)))
        assert self.inventory("slow") == (1000, 0)
        assert self.inventory("fast") == (1, 1)

    def test_traits_name_the_core_type_and_whether_instructions_are_counted(self):
        """The agent removes its own traits and keeps those of others."""
        url = f"/resource_providers/{provider_uuid('host1', 'fast')}/traits"
        self.offer("host1", counts_ips=True)
        there = self.placement.get(url, version="1.36").body
        assert set(there["traits"]) == {"CUSTOM_AMP_CORE_FAST", "CUSTOM_AMP_IPS"}

        self.placement.put("/traits/CUSTOM_MINE", {}, version="1.36")
        mine = {**there, "traits": [*there["traits"], "CUSTOM_MINE"]}
        assert self.placement.put(url, mine, version="1.36").status == 200
        self.offer("host1")

        there = self.placement.get(url, version="1.36").body
        assert set(there["traits"]) == {"CUSTOM_AMP_CORE_FAST", "CUSTOM_MINE"}

    def test_a_conflicting_write_is_repeated(self):
        """Another client changes the provider between the read and the write."""
        client, url = self.client(), f"/resource_providers/{provider_uuid('host1', 'slow')}"
        put, test = client.put, self

        def interfere(where, **said):
            if where.startswith(url) and where.endswith("inventories") and not test.interfered:
                test.interfered = True
                aggregates = {
                    "aggregates": [],
                    "resource_provider_generation": said["json"]["resource_provider_generation"],
                }
                assert (
                    test.placement.put(f"{url}/aggregates", aggregates, version="1.36").status
                    == 200
                )
            return put(where, **said)

        self.interfered = False
        client.put = interfere
        self.inventories["host1"] = Inventory(client, "host1")
        self.offer("host1", hosts.topology({"slow": (2, 1.5), "fast": (1, 2.0)}))

        assert self.interfered
        assert self.inventory("slow") == (3000, 0)

    def test_a_core_type_that_is_gone_closes_until_its_claims_are_gone(self):
        """Existing claims are kept, and new ones are refused."""
        server = self.boot(self.claimed_flavor(pref_core="1.5"))
        symmetric = hosts.topology({"slow": (3, 1.0)})

        self.offer("host1", symmetric)
        assert self.inventory("fast") == (2000, 2000)

        self._delete_server(server)
        self.offer("host1", symmetric)
        assert self.inventory("fast") is None


class ClaimTest(PlacementTestCase):
    def test_a_booking_without_a_claim_is_reserved(self):
        """Whether it runs or not, so that claims of others do not use its capacity."""
        server = self.boot(self.flavor(pref_core="0.6"))
        self.cycle()
        self.offer("host1")
        assert self.inventory("slow") == (2000, 600)

        self._stop_server(server)
        self.boot(self.claimed_flavor(pref_core="0.5"))
        self.cycle()
        self.offer("host1")
        assert self.inventory("slow") == (2000, 600)

        self._delete_server(server)
        self.cycle()
        self.offer("host1")
        assert self.inventory("slow") == (2000, 0)

    def test_a_core_type_is_requested_by_its_trait_and_another_group_needs_a_group_policy(self):
        """``amp:core_type`` becomes a trait that only that type's provider has.

        The policy is Placement's rule for all flavors with two suffixed groups.
        """
        more = {"resources_MORE:VCPU": "1"}
        specs = {"amp:pref_core": "0.5", "amp:core_type": "fast"}
        specs |= placement(parse(specs, 1))
        for extra, state in (({}, "ERROR"), ({"group_policy": "none"}, "ACTIVE")):
            size = {"vcpu": 1, "memory_mb": 64, "disk": 0, "ephemeral": 0}
            flavor = self._create_flavor(**size, extra_spec={**specs, **more, **extra})
            server = self.boot(flavor, state)

        allocations = self._get_allocations_by_server_uuid(server["id"])
        fast = allocations[provider_uuid("host1", "fast")]
        assert fast["resources"] == {PLACEMENT_CLASS: 500}

    @pytest.mark.skipif(NOVA < 31, reason="Nova's fixture does not answer oslo.limit before 31")
    def test_a_quota_in_reference_cores(self):
        """Unified limits count what a project claims, by Placement's records."""
        limits = self.useFixture(UnifiedLimitsFixture())
        for name, most in (
            (f"class:{PLACEMENT_CLASS}", 1000),
            *((n, 10_000) for n in ("servers", "class:VCPU", "class:MEMORY_MB", "class:DISK_GB")),
        ):
            limits.create_registered_limit(resource_name=name, default_limit=most)
        self.flags(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        self.boot(self.claimed_flavor(pref_core="0.6"))

        flavor = self.claimed_flavor(pref_core="0.5")
        with pytest.raises(OpenStackApiException, match=PLACEMENT_CLASS):
            self.boot(flavor)
        self.boot(self.claimed_flavor(pref_core="0.4"))

    def test_the_claim_is_made_on_the_core_type_that_the_packing_uses(self):
        """Slow cores while they suffice, then the fast one."""
        flavor = self.claimed_flavor(pref_core="1")
        used = []
        for _ in range(4):
            server = self.boot(flavor)
            self.cycle()
            allocations = self._get_allocations_by_server_uuid(server["id"])
            used += [t for t in TYPES if provider_uuid("host1", t) in allocations]

        assert used == ["slow", "slow", "fast", "fast"]
        self.boot(flavor, state="ERROR")
