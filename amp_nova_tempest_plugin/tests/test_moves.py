# SPDX-License-Identifier: Apache-2.0
"""A server keeps its booking, whatever the cores of the host that it moves to."""

import testtools
from tempest import config
from tempest.lib import decorators

from amp_nova_tempest_plugin.tests import bookings

CONF = config.CONF
FEATURES = CONF.compute_feature_enabled


class MovesTest(bookings.BookingsTest):
    """Live migration, cold migration and resize."""

    @classmethod
    def skip_checks(cls) -> None:
        super().skip_checks()
        if CONF.compute.min_compute_nodes < 2:
            raise cls.skipException(
                "[compute] min_compute_nodes is below 2: servers move between two compute hosts."
            )

    def check(self, server: str, mrefcores: int) -> None:
        """The server has this booking on its host, and nothing of another one elsewhere."""
        client = self.os_admin.migrations_client

        def freed() -> None:
            # While a server moves, its migration holds what it claimed before.
            for migration in client.list_migrations(instance_uuid=server)["migrations"]:
                self.assertEqual({}, self.claims(migration["uuid"]))

        self.check_reported(server, mrefcores)
        self.check_claimed(server, mrefcores)
        self.wait_for(freed)
        self.check_delivered(server, mrefcores)

    def confirm(self, server: str) -> None:
        """Wait for the end of a resize or a cold migration, and confirm it."""
        self.wait(server, "VERIFY_RESIZE")
        self.admin_servers_client.confirm_resize_server(server)
        self.wait(server)

    @decorators.attr(type="multinode")
    @decorators.idempotent_id("1ab79954-62e6-4ee8-b110-f8570f107337")
    @testtools.skipUnless(FEATURES.live_migration, "Live migration is not available.")
    def test_a_live_migration_keeps_the_booking(self) -> None:
        """On the destination that the scheduler chose, at the speed of its cores."""
        server = self.boot(self.mrefcores)
        source = self.node(server)

        self.admin_servers_client.live_migrate_server(server, host=None, block_migration="auto")

        self.wait(server)
        self.assertNotEqual(source, self.node(server))
        self.check(server, self.mrefcores)

    @decorators.attr(type="multinode")
    @decorators.idempotent_id("7d9098e2-e100-427d-afc1-3db6939ce9ed")
    @testtools.skipUnless(FEATURES.cold_migration, "Cold migration is not available.")
    def test_a_cold_migration_keeps_the_booking(self) -> None:
        """The source has nothing of it once the migration is confirmed."""
        server = self.boot(self.mrefcores)
        source = self.node(server)

        self.admin_servers_client.migrate_server(server)

        self.confirm(server)
        self.assertNotEqual(source, self.node(server))
        self.check(server, self.mrefcores)

    @decorators.attr(type="multinode")
    @decorators.idempotent_id("7eafb328-cb53-4a3e-88e1-ac829dcd6c9f")
    @testtools.skipUnless(FEATURES.resize, "Resize is not available.")
    def test_a_resize_changes_the_booking(self) -> None:
        """To that of the new flavor, on the host that the scheduler chose for it."""
        server, smaller = self.boot(self.mrefcores), self.mrefcores * 3 // 5

        self.admin_servers_client.resize_server(server, self.flavor(smaller))

        self.confirm(server)
        self.check(server, smaller)
