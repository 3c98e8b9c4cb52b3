"""Builders of hosts' reports to the schedulers."""

from amp_nova.flavor.extra_specs import parse
from amp_nova.scheduling.host_fit import ask_of
from amp_nova.wire.host_report import HostSnapshot, InstanceShare, Origin, VcpuShare
from tests import hosts

NOW_S = 1_800_000_000.0


def instance(resource, *vcpus, **said):
    """An instance; a vCPU is given as (reference cores, pCPU), best effort as ``None``."""
    allowed = said.pop("allowed", frozenset({0, 1, 2}))
    shares = []
    for index, vcpu in enumerate(vcpus):
        refcores, pcpu = vcpu or (None, None)
        core_type = said.get("on", {0: "slow", 1: "slow", 2: "fast"}).get(pcpu)
        shares.append(VcpuShare(index, refcores, allowed=allowed, core_type=core_type, pcpu=pcpu))
    said.pop("on", None)
    return InstanceShare(resource, tuple(shares), **said)


def snapshot(*instances, node="host1", boot_id="boot", sequence=1, time_s=NOW_S, **said):
    """A host's report; the usual host has two slow pCPUs (0, 1) and a fast one (2)."""
    topology = said.pop("topology", None) or hosts.topology()
    bookable = said.pop("bookable", frozenset(p.id for p in topology.pcpus))
    origin = Origin(node, boot_id, sequence, time_s)
    return HostSnapshot(origin, topology, bookable, instances=instances, **said)


def ask(vcpus=1, **specs):
    """What a flavor asks for; ``specs`` without ``amp:``, ``__`` for the dot."""
    extra = {f"amp:{k.replace('__', '.')}": str(v) for k, v in specs.items()}
    return ask_of(parse(extra, vcpus))
