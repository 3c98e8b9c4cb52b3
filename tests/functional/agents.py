# SPDX-License-Identifier: Apache-2.0
"""Agents of fake hosts: the real loop and publisher over ``tests.support.hosts``.

A fake host runs the instances of one of Nova's fake compute services.
"""

from contextlib import suppress
from dataclasses import replace

import nova.rpc
from nova import context, objects
from nova.exception import InstanceNotFound
from oslo_config import cfg

from amp_nova import conf as agent_conf
from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.agent.publish.host_info import HostInfo, host_report
from amp_nova.agent.publish.host_reports import MessageBus, Publisher
from amp_nova.control.context import Terms
from amp_nova.model.topology import Topology
from amp_nova.wire.host_report import Origin
from tests.support import hosts


def options():
    """An agent's configuration, on the bus that Nova's fixtures use."""
    conf = cfg.ConfigOpts()
    agent_conf.register_opts(conf)
    conf([], project="amp-nova", default_config_files=[], default_config_dirs=[])
    conf.set_override("interval_s", 3600.0, "reports")
    return conf


NOT_RUNNING = ("stopped", "suspended", "shelved", "soft-delete")
"""States in which libvirt has the domain defined, but not active."""


def _is_moving(instance):
    """Whether libvirt has its domain on another host as well."""
    return instance.vm_state == "resized" or instance.task_state is not None


def _is_of(domain, flavor):
    """Whether a domain was started with this flavor."""
    return domain is not None and (domain.specs, domain.vcpus) == (flavor.extra_specs, flavor.vcpus)


class Agent:
    """The agent of one compute service's host.

    ``types``: as in ``tests.support.hosts.topology``, or a topology.
    """

    def __init__(self, compute, types=None, reserve_ratio=0.0, bookable=None):
        self._compute = compute
        self.host = hosts.FakeHost(types if isinstance(types, Topology) else hosts.topology(types))
        self.loop = Loop(self.host, self.host, LoopSettings(Terms(reserve_ratio)))
        self.info = HostInfo(compute.host, bookable, reserve_ratio)
        bus = MessageBus(nova.rpc.TRANSPORT, compute.host)
        self.publisher = Publisher(options().reports, compute.host, bus, answer_spread_s=0.0)
        self.last = None
        """The record of the last control cycle."""

    def cycle(self):
        """One control cycle over what runs on the host now; publishes a report of changes."""
        self._run_instances()
        self.host.wait(1.0)
        self.last = self.loop.cycle()
        self.publisher.offer(self.last, self.info)
        return self.last

    def _run_instances(self):
        """Have the fake host run the instances of Nova's fake driver, and define the others."""
        running, stopped, defined = {}, {}, set()
        for uuid, instance in self._instances():
            here = instance.host == self._compute.host
            if here and instance.task_state is None:
                (stopped if instance.vm_state in NOT_RUNNING else running)[uuid] = instance
            elif here or _is_moving(instance):
                defined.add(uuid)
        for uuid in self.host.domains.keys() - running.keys():
            self.host.stop(uuid)
        inactive = {
            d.resource: d for d in self.host.inactive if d.resource in defined | stopped.keys()
        }
        self.host.inactive = []
        for uuid, instance in stopped.items():
            if not _is_of(inactive.get(uuid), instance.flavor):
                self._start(uuid, instance)
                self.host.stop(uuid)
                inactive[uuid] = self.host.inactive.pop()
        self.host.inactive = list(inactive.values())
        for uuid, instance in running.items():
            known = self.host.domains.get(uuid)
            if not _is_of(known and known.domain, instance.flavor):
                self._start(uuid, instance)

    def _start(self, uuid, instance):
        """Start the domain of an instance, with the flavor that it has now."""
        specs = dict(instance.flavor.extra_specs)
        bare = {k.removeprefix("amp:"): v for k, v in specs.items() if k[:4] == "amp:"}
        made = self.host.add(
            uuid,
            bare,
            instance.flavor.vcpus,
            self._pinned(instance),
            flavor_id=instance.flavor.flavorid,
            image=instance.image_ref or "",
        )
        made.domain = replace(made.domain, specs=specs)

    def _instances(self):
        """What the cell of the compute service says of the instances of its driver."""
        admin = context.get_admin_context()
        cell = objects.HostMapping.get_by_host(admin, self._compute.host).cell_mapping
        for uuid in list(self._compute.manager.driver.instances):
            # The fake driver keeps the source of a resize.
            with context.target_cell(admin, cell) as its, suppress(InstanceNotFound):
                attributes = ["flavor", "numa_topology"]
                yield uuid, objects.Instance.get_by_uuid(its, uuid, expected_attrs=attributes)

    def _pinned(self, instance):
        """The pCPUs of the NUMA cell that the compute service chose; ``None`` without one."""
        if instance.numa_topology is None:
            return None
        node = self._compute.manager.rt.compute_nodes[self._compute.host]
        cells = objects.NUMATopology.obj_from_db_obj(node.numa_topology).cells
        (pinned,) = instance.numa_topology.cells
        return frozenset(next(c.cpuset for c in cells if c.id == pinned.id))

    def truth(self):
        """What a report would say now; nothing is published."""
        self._run_instances()
        self.host.wait(1.0)
        return host_report(self.loop.cycle(), self.info, Origin("host", "boot", 0, 0.0))

    def report(self):
        """Its report of the last cycle."""
        return host_report(self.last, self.info, Origin("host", "boot", 0, 0.0))

    def reported(self):
        """The instances that its report of the last cycle has."""
        return set(self.report().by_uuid)

    def over_booked(self):
        """Booked vCPUs without a place, by the agent's own packing."""
        return [
            (d.domain.resource, v.reading.index)
            for d in self.last.domains
            for v in d.vcpus
            if v.entitlement.booking.kind != "best_effort" and v.entitlement.home.pcpu is None
        ]
