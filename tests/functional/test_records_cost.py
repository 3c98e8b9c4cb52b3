# SPDX-License-Identifier: Apache-2.0
"""What following Nova's records costs, in a cloud of twenty cells."""

import contextlib
import threading
from collections import Counter
from typing import ClassVar
from unittest import mock

import sqlalchemy
from nova.virt import fake

from amp_nova.nova_plugins import nova_records, report_server
from tests.functional.cloud import CloudTestCase


class RecordsCostTest(CloudTestCase):
    """Two hosts, in two of the cells."""

    NUMBER_OF_CELLS = 20
    HOSTS: ClassVar = {"host1": {"slow": (2, 1.0)}, "host2": {"slow": (2, 1.0)}}
    CELLS: ClassVar = {"host2": "cell2"}

    def setUp(self):
        # Nova's scheduler would read all cells as it starts, in which the fixtures lose a race.
        self.flags(track_instance_changes=False, group="filter_scheduler")
        super().setUp()

    @contextlib.contextmanager
    def statements(self):
        """How many statements are executed, by the table that they read first."""
        counts, ours, read = Counter(), {threading.get_ident()}, nova_records._in_a_cell

        def reading(*arguments):
            ours.add(threading.get_ident())
            return read(*arguments)

        def executed(_connection, _cursor, statement, *_more):
            if threading.get_ident() not in ours:
                return  # Nova's services go on meanwhile
            if " FROM " in (text := " ".join(statement.split())):
                counts[text.partition(" FROM ")[2].split()[0].strip("(")] += 1

        sqlalchemy.event.listen(sqlalchemy.engine.Engine, "before_cursor_execute", executed)
        try:
            with mock.patch("amp_nova.nova_plugins.nova_records._in_a_cell", reading):
                yield counts
        finally:
            sqlalchemy.event.remove(sqlalchemy.engine.Engine, "before_cursor_execute", executed)

    def look(self, **how):
        """The statements of one look into Nova's records."""
        with self.statements() as counts:
            report_server.shared().follow_up(**how)
        return counts

    def test_only_the_cells_of_pending_instances_are_asked(self):
        """One statement each, and one for which cells these are, while a build is under way."""
        spawn, seen = fake.FakeDriver.spawn, []

        def building(driver, *args, **kwargs):
            seen.append(self.look(arriving=False))
            return spawn(driver, *args, **kwargs)

        with mock.patch.object(fake.FakeDriver, "spawn", building):
            self.boot(self.flavor(pref_core="0.1"))
        assert seen == [{"instance_mappings": 1, "instances": 1}]

        # What arrives without having been heard of may be in any cell; looked for twice a minute.
        counts = self.look()
        assert counts.pop("instances") <= 3 * (self.NUMBER_OF_CELLS + 1) + 1  # and failed builds'
        assert counts == {"instance_mappings": 2, "cell_mappings": 1}

    def test_an_unconfirmed_resize_costs_little(self):
        """It may wait for days, on the same host with the larger of both sizes."""
        self.flags(allow_resize_to_same_host=True)
        for host in self.HOSTS:
            self.boot(self.flavor(vcpus=2, pref_core="0.6"), az=f"nova:{host}")
        self.cycle()
        server = self.api.get_server(next(iter(self.states.entry("host1").report.by_uuid)))
        self._resize_server(server, self.flavor(vcpus=2, pref_core="0.3"))
        self.cycle()
        assert self.states.pending() == {server["id"]}
        with mock.patch.object(nova_records.Placement, "nodes_of") as asked:
            self.look()
        asked.assert_not_called()
        assert self.states.pending() == {server["id"]}
