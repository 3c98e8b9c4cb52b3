# SPDX-License-Identifier: Apache-2.0
"""Guests that Nova pins to a NUMA cell, and those that want pCPUs of their own."""

from typing import ClassVar
from unittest import mock

from nova import objects
from nova.virt import fake

from tests.functional.cloud import CloudTestCase


def cell(number, *pcpus):
    """A NUMA cell of a host, with shared pCPUs only."""
    return objects.NUMACell(
        id=number,
        cpuset=set(pcpus),
        pcpuset=set(),
        memory=4096,
        cpu_usage=0,
        memory_usage=0,
        pinned_cpus=set(),
        siblings=[{pcpu} for pcpu in pcpus],
        mempages=[
            objects.NUMAPagesTopology(size_kb=4, total=1 << 20, used=0),
            objects.NUMAPagesTopology(size_kb=2048, total=1024, used=0),
        ],
        socket=number,
    )


class NumaTest(CloudTestCase):
    """A host of two cells with two cores each."""

    HOSTS: ClassVar = {"host1": {"slow": (4, 1.0)}}

    def setUp(self):
        topology = objects.NUMATopology(cells=[cell(0, 0, 1), cell(1, 2, 3)])._to_json()
        resources = fake.FakeDriver.get_available_resource

        def with_cells(driver, node):
            return resources(driver, node) | {"numa_topology": topology}

        update_provider_tree = fake.FakeDriver.update_provider_tree

        def with_own_cpus(driver, tree, node, allocations=None):
            """Nova does not even ask the filter about hosts that sell no dedicated CPUs."""
            update_provider_tree(driver, tree, node, allocations)
            own = {"PCPU": {"total": 4, "max_unit": 4}}
            tree.update_inventory(node, tree.data(node).inventory | own)

        replaced = {
            "get_available_resource": with_cells,
            "update_provider_tree": with_own_cpus,
        }
        patched = mock.patch.multiple(fake.FakeDriver, **replaced)
        patched.start()
        self.addCleanup(patched.stop)
        super().setUp()

    def numa_flavor(self, vcpus=1, booked=None, **keys):
        """A flavor of one NUMA node; ``keys`` with ``__`` for the colon."""
        specs = {k.replace("__", ":"): v for k, v in keys.items()} or {"hw:numa_nodes": "1"}
        if booked:
            specs["amp:pref_core"] = booked
        return self._create_flavor(
            vcpu=vcpus, memory_mb=64 if booked else 512, disk=0, ephemeral=0, extra_spec=specs
        )

    def occupy_cell_1(self):
        """Nova pins to the cell with fewer vCPUs, and of two to the one with more free memory."""
        for flavor in (self.numa_flavor(2), *[self.numa_flavor(1, "1")] * 2):
            self.boot(flavor)
            self.cycle()
        places = [
            vcpu.cpus_allowed_list
            for instance in self.states.entry("host1").report.instances
            for vcpu in instance.vcpus
            if vcpu.booked
        ]
        assert places == ["2-3", "2-3"]

    def test_a_guest_that_nova_pins_to_a_full_cell_is_refused(self):
        """Although the other cell has capacity; a guest that Nova does not pin gets that."""
        self.occupy_cell_1()

        self.boot(self.numa_flavor(1, "0.5"), state="ERROR")
        self.boot(self.numa_flavor(1, "0.5", hw__mem_page_size="large"), state="ERROR")
        # A cell that an image asks for counts as well.
        image = self.image(hw_numa_nodes=1)
        self.boot(self.flavor(pref_core="0.5"), state="ERROR", image_uuid=image)

        self.boot(self.flavor(pref_core="0.5"))
        self.cycle()
        assert self.agents["host1"].over_booked() == []

    def test_a_pinned_guest_counts_in_its_cell_before_it_is_reported(self):
        """Two of 0.6 do not fit one core, but each has one."""
        self.occupy_cell_1()
        self.boot(self.numa_flavor(2))  # goes to cell 1, so that the next ones go to cell 0
        self.cycle()
        for _ in range(2):
            self.boot(self.numa_flavor(1, "0.6"))

        self.boot(self.numa_flavor(1, "0.6"), state="ERROR")
        self.cycle()
        assert self.agents["host1"].over_booked() == []

    def test_each_of_several_pinned_guests_gets_a_cell(self):
        """That one request makes; the second is placed beside the first."""
        flavor = self.numa_flavor(1, "0.6", hw__numa_nodes="1")
        servers = self.boot_several(4, flavor_id=flavor)
        for server in servers:
            self._wait_for_state_change(server, "ACTIVE")
        self.cycle()
        assert self.agents["host1"].over_booked() == []

    def image(self, **properties):
        """An image with properties."""
        return self.glance.create(
            None,
            {
                "name": "wanting",
                "container_format": "raw",
                "disk_format": "raw",
                "size": 1,
                "min_disk": 0,
                "min_ram": 0,
                "status": "active",
                "properties": properties,
            },
        )["id"]

    def test_a_booking_on_cpus_of_its_own_gets_no_host(self):
        """Dedicated, mixed or real-time, by the flavor or by the image; the log says why."""
        mask = {"hw__cpu_dedicated_mask": "0"}
        real_time = {"hw__cpu_realtime": "yes", "hw__cpu_realtime_mask": "^0"}
        by_flavor = "is not possible, because a booking shares its pCPUs"
        by_image = "its image asks for dedicated CPUs, but a booking shares its pCPUs"
        for keys, properties, why in (
            ({"hw__cpu_policy": "dedicated"}, {}, f"hw:cpu_policy='dedicated' {by_flavor}"),
            ({"hw__cpu_policy": "mixed", **mask}, {}, f"hw:cpu_policy='mixed' {by_flavor}"),
            (real_time, {"hw_cpu_policy": "dedicated"}, f"hw:cpu_realtime='yes' {by_flavor}"),
            ({}, {"hw_cpu_policy": "dedicated"}, by_image),
            (mask, {"hw_cpu_policy": "mixed"}, f"hw:cpu_dedicated_mask='0' {by_flavor}"),
        ):
            flavor, image = self.numa_flavor(2, "0.5", **keys), self.image(**properties)
            server = self.boot(flavor, state="ERROR", image_uuid=image)
            logged = self.stdlog.logger.output.splitlines()
            assert [line for line in logged if server["id"] in line and why in line], (keys, why)
