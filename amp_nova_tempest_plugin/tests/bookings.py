# SPDX-License-Identifier: Apache-2.0
"""What the tests have in common: servers of flavors that book capacity, and checks of these."""

import io
import time
from typing import Any

from tempest import config, exceptions
from tempest.api.compute import base
from tempest.common import waiters
from tempest.lib.common.utils import data_utils, test_utils

from amp_nova_tempest_plugin import prometheus

CONF = config.CONF
RESOURCE_CLASS = "CUSTOM_AMP_MREFCORE"
PARTITION = bytes.fromhex("8000 0200 8300 0300 0100 0000 ff07 0000")


def looping_disk() -> bytes:
    """A disk whose boot sector jumps to itself: its guest always wants to run."""
    disk = bytearray(1 << 20)
    disk[:2] = b"\xeb\xfe"
    disk[446:462] = PARTITION  # Glance insists on one
    disk[510:512] = b"\x55\xaa"
    return bytes(disk)


class BookingsTest(base.BaseV2ComputeAdminTest):
    """Servers belong to an administrator, who sees hosts and may use private flavors."""

    min_microversion = "2.86"  # validates extra specs
    placement_min_microversion = "1.14"  # knows trees of providers

    @classmethod
    def skip_checks(cls) -> None:
        super().skip_checks()
        if not CONF.amp_nova.prometheus_url:
            raise cls.skipException("[amp_nova] prometheus_url is not set in tempest.conf.")

    @classmethod
    def setup_clients(cls) -> None:
        super().setup_clients()
        cls.placement_client = cls.os_admin.placement_client
        cls.providers_client = cls.os_admin.resource_providers_client

    @classmethod
    def resource_setup(cls) -> None:
        super().resource_setup()
        if not prometheus.query("amp_build_info"):
            raise ValueError(
                f"Prometheus at {CONF.amp_nova.prometheus_url} has no series of amp-nova: let it "
                "scrape the agents"
            )
        flavor = cls.admin_flavors_client.show_flavor(CONF.compute.flavor_ref)["flavor"]
        cls.size = {"ram": flavor["ram"], "disk": flavor["disk"]}
        cls.mrefcores = round(1000 * CONF.amp_nova.refcores)
        cls.image = CONF.amp_nova.image_ref or cls._upload_image()

    @classmethod
    def _upload_image(cls) -> str:
        client = cls.admin_image_client
        image = client.create_image(
            name=data_utils.rand_name("amp-nova-busy", prefix=CONF.resource_name_prefix),
            disk_format="raw",
            container_format="bare",
            hw_architecture="x86_64",
            os_shutdown_timeout="1",  # no operating system answers to ACPI
        )["id"]
        cls.addClassResourceCleanup(client.delete_image, image)
        client.store_image_file(image, io.BytesIO(looping_disk()))
        return str(image)

    def flavor(self, mrefcores: int, vcpus: int = 1, *, claims: bool = True, **specs: str) -> str:
        """A flavor whose vCPUs book so many thousandths of a reference core each."""
        flavor = str(self.create_flavor(vcpus=vcpus, is_public=False, **self.size)["id"])
        specs = {"amp:pref_core": f"{mrefcores / 1000:.3f}", **specs}
        if claims and CONF.amp_nova.claims:
            specs[f"resources_AMP:{RESOURCE_CLASS}"] = str(mrefcores * vcpus)
        self.admin_flavors_client.set_flavor_extra_spec(flavor, **specs)
        return flavor

    def create(self, flavor: str, **more: Any) -> str:
        """Ask Nova for a server, which is deleted when the test ends."""
        server = self.create_test_server(
            clients=self.os_admin, flavor=flavor, image_id=self.image, networks="none", **more
        )
        self.addCleanup(test_utils.call_and_ignore_notfound_exc, self.delete, server["id"])
        return str(server["id"])

    def boot(self, mrefcores: int) -> str:
        """A server with this booking, once it is ACTIVE and reported by its host's agent."""
        server = self.create(self.flavor(mrefcores))
        self.wait(server)
        self.check_reported(server, mrefcores)
        return server

    def wait(self, server: str, status: str = "ACTIVE") -> None:
        """Until the server has this status and no task is in progress."""
        waiters.wait_for_server_status(self.admin_servers_client, server, status)

    def placed(self, server: str) -> bool:
        """Whether Nova found a host for the server; no other error is accepted."""
        try:
            self.wait(server)
        except exceptions.BuildErrorException as refused:
            self.assertIn("No valid host", str(refused))
            return False
        return True

    def delete(self, server: str) -> None:
        """Delete a server, and wait until it is gone."""
        client = self.admin_servers_client
        client.delete_server(server)
        waiters.wait_for_server_termination(client, server, ignore_error=True)

    def node(self, server: str) -> str:
        """The hypervisor_hostname of the server's host."""
        shown = self.admin_servers_client.show_server(server)["server"]
        return str(shown["OS-EXT-SRV-ATTR:hypervisor_hostname"])

    def claims(self, server: str) -> dict[str, int]:
        """What the server claims of core types, by the names of their providers."""
        held = self.placement_client.list_allocations(server)["allocations"]
        return {
            self.providers_client.show_resource_provider(uuid)["name"]: resources[RESOURCE_CLASS]
            for uuid, allocation in held.items()
            if RESOURCE_CLASS in (resources := allocation["resources"])
        }

    def check_reported(self, server: str, mrefcores: int | None = None) -> None:
        """The agent of the server's host exports its booking, and no other agent does.

        Without ``mrefcores`` any: before Nova 32.0 agents know only what they are told of flavors.
        """
        name, host = "amp_instance_booked_refcores", self.node(server)

        def reported() -> None:
            found = prometheus.query(f'max by (host) ({name}{{resource="{server}"}})')
            exported = {labels.get("host"): round(1000 * value) for labels, value in found}
            wanted = {host: exported.get(host) if mrefcores is None else mrefcores}
            self.assertEqual(wanted, exported, f"{name} by host, in thousandths")

        self.wait_for(reported)

    def check_claimed(self, server: str, mrefcores: int) -> None:
        """The server claims its booking, of one core type of its host, if flavors have claims."""
        if CONF.amp_nova.claims:
            claims = self.claims(server)
            self.assertEqual([mrefcores], list(claims.values()), claims)
            self.assertTrue(next(iter(claims)).startswith(f"{self.node(server)}_amp_"), claims)

    def check_delivered(self, server: str, mrefcores: int) -> None:
        """The server receives what it booked, neither less nor more, if its guest is busy."""
        if not CONF.amp_nova.image_busy:
            return
        labels = f'resource="{server}", host="{self.node(server)}"'
        series = f"amp_instance_reference_cpu_seconds_total{{{labels}}}"
        least, most = 1 - CONF.amp_nova.tolerance, 1 + CONF.amp_nova.tolerance

        def ratio() -> float:
            found = prometheus.query(f"sum(rate({series}[{CONF.amp_nova.window}s]))")
            self.assertNotEqual([], found, f"Prometheus has no samples of {series}")
            return 1000 * found[0][1] / mrefcores

        def works() -> None:
            self.assertGreater(ratio(), least, "delivered over booked: is the image's guest busy?")

        self.wait_for(works)
        time.sleep(CONF.amp_nova.window)  # measured is what follows the boot or the move
        delivered = ratio()
        self.assertTrue(least <= delivered <= most, f"delivered over booked: {delivered:.3f}")
