# SPDX-License-Identifier: Apache-2.0
"""A server whose flavor books capacity gets it, or is refused."""

from tempest import config
from tempest.lib import decorators

from amp_nova_tempest_plugin import prometheus
from amp_nova_tempest_plugin.tests import bookings

CONF = config.CONF
MORE_THAN_ANY_CORE = 200_000
"""Thousandths of a reference core."""


class ServersTest(bookings.BookingsTest):
    """Filter and agents, by what Nova and Prometheus say."""

    @decorators.idempotent_id("f1896650-e006-44c7-8b94-fbc49cfb69a8")
    def test_an_agent_reports_the_booking_until_the_server_is_deleted(self) -> None:
        """The one of the host that Nova chose; then Prometheus has no series of the server."""
        server = self.boot(self.mrefcores)

        self.delete(server)

        def forgotten() -> None:
            self.assertEqual([], prometheus.query(f'amp_instance_info{{resource="{server}"}}'))

        self.wait_for(forgotten)

    @decorators.idempotent_id("dc367dda-2ee1-4348-9eb5-d178a82af6e2")
    def test_a_busy_server_receives_what_it_booked(self) -> None:
        """Over some seconds, by the agent's metrics."""
        if not CONF.amp_nova.image_busy:
            raise self.skipException(
                "[amp_nova] image_busy is false: an idle guest takes less than it booked."
            )
        server = self.boot(self.mrefcores)

        self.check_delivered(server, self.mrefcores)

    @decorators.attr(type="negative")
    @decorators.idempotent_id("b55c4359-3ebe-4104-8c1e-5c0317b6e588")
    def test_a_server_that_fits_nowhere_is_refused(self) -> None:
        """By the filter: the flavor claims nothing that Placement could refuse."""
        server = self.create(self.flavor(MORE_THAN_ANY_CORE, claims=False))

        self.assertFalse(self.placed(server), "a host took a booking of 200 reference cores")
