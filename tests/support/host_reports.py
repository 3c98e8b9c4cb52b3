# SPDX-License-Identifier: Apache-2.0
"""Builders of host reports."""

from amp_nova.flavor.extra_specs import parse
from amp_nova.model import cpulist
from amp_nova.scheduling.demands import request_of
from amp_nova.wire.host_report import HostReport, Origin, ReportedInstance, ReportedVcpu
from tests.support import hosts

NOW_S = 1_800_000_000.0


def instance(resource, *vcpus, **fields):
    """An instance; a vCPU is given as (reference cores, pCPU), or ``None`` for best effort."""
    allowed = cpulist.show(fields.pop("allowed", {0, 1, 2}))
    core_types = fields.pop("on", {0: "slow", 1: "slow", 2: "fast"})
    reported = []
    for index, vcpu in enumerate(vcpus):
        refcores, pcpu = vcpu or (None, None)
        core_type = core_types.get(pcpu)
        reported.append(
            ReportedVcpu(index, refcores, cpus_allowed_list=allowed, core_type=core_type, pcpu=pcpu)
        )
    return ReportedInstance(resource, tuple(reported), **fields)


def host_report(*instances, node="host1", boot_id="boot", sequence=1, time_s=NOW_S, **fields):
    """A host's report; the default host has two slow pCPUs (0, 1) and a fast one (2)."""
    topology = fields.pop("topology", None) or hosts.topology()
    bookable = fields.pop("bookable", frozenset(p.id for p in topology.pcpus))
    origin = Origin(node, boot_id, sequence, time_s)
    return HostReport(origin, topology, bookable, instances=instances, **fields)


def request(vcpus=1, **specs):
    """The request of a flavor; ``specs`` without ``amp:``, and ``__`` for the dot."""
    extra = {f"amp:{k.replace('__', '.')}": str(v) for k, v in specs.items()}
    return request_of(parse(extra, vcpus))
