"""Reports on the wire: what is sent is what is read, and what is no report is refused."""

import json
from dataclasses import replace

import pytest

from amp_nova.exceptions import SnapshotInvalid
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.wire.host_report import (
    CHARACTERS_MAX,
    InstanceShare,
    Speedup,
    VcpuShare,
    decode,
    encode,
)
from tests.snapshots import instance, snapshot


def full():
    """A report in which everything is said."""
    types = (CoreType("slow", 1.0, nominal_ips=2e9), CoreType("fast", 2.5, nominal_ips=5e9))
    topology = Topology(types, (PCpu(0, "slow"), PCpu(1, "fast")), "slow", "sysfs", offline=(2,))
    vcpu = VcpuShare(0, None, 8e8, frozenset({0, 1}), "fast", 1, 0.75, Speedup(1.8, 0.05), 1.2)
    booked = InstanceShare("a", (vcpu,), "fast", 2.0, "high", "flavor-1", "image-1")
    return snapshot(
        booked,
        InstanceShare("b", (VcpuShare(0, allowed=frozenset({0})),), hint=1.5),
        topology=topology,
        bookable=frozenset({1}),
        reserve_ratio=0.1,
        policy="amp-vm",
        counters="perf",
        healthy=False,
        problems=("instance-1: its booking cannot be read",),
        free_fast_cores=0.5,
    )


def said(**other):
    """The full report as an object, with other values; ``None`` takes a field away."""
    found = {**json.loads(encode(full())), **other}
    return json.dumps({k: v for k, v in found.items() if v is not None})


def nested(**other):
    """The same with other values in its first vCPU."""
    found = json.loads(encode(full()))
    found["instances"][0]["vcpus"][0].update(other)
    return json.dumps(found)


@pytest.mark.parametrize("report", [full(), snapshot(), snapshot(instance("a", (0.5, 2), None))])
def test_what_is_sent_is_what_is_read(report):
    """Nothing is lost on the way."""
    assert decode(encode(report)) == report


def test_fields_of_later_agents_are_passed_over():
    """A new field is no new version: schedulers may be older than agents."""
    assert decode(said(colour="green")) == full()


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"{}",
        "",
        "{}",
        "[]",
        "nonsense",
        "[" * 100_000,
        said(node=""),
        said(node="x" * 256),
        said(node=7),
        said(sequence=-1),
        said(sequence=True),
        said(time_s=None),
        said(time_s="now"),
        said(version=None),
        said(bookable="0-99999999999"),
        said(core_types=[{"name": "slow", "coefficient": 0, "pcpus": "0"}]),
        said(core_types=[{"name": "slow", "coefficient": "fast", "pcpus": "0"}]),
        said(core_types=[{"name": "slow", "pcpus": "0"}, {"name": "fast", "pcpus": "0"}]),
        said(core_types=[{"name": "slow", "pcpus": "0"}, {"name": "slow", "pcpus": "1"}]),
        said(instances=[{"resource": "a"}, {"resource": "a"}]),
        said(instances=["a"]),
        said(instances={"a": 1}),
        said(problems=[1]),
        said(healthy=1),
        nested(refcores=-0.5),
        nested(refcores=1e400),
        encode(full()).replace("0.75", "NaN"),
        encode(full()).replace("0.75", "1" * 5000),
    ],
)
def test_what_is_no_report_is_refused(text):
    """Whatever comes over the bus, it is refused as a whole and never believed in part."""
    with pytest.raises(SnapshotInvalid) as refused:
        decode(text)
    assert refused.value.kind == "malformed"


def test_a_later_version_is_refused():
    """What its fields mean is not known here."""
    with pytest.raises(SnapshotInvalid, match="version 2") as refused:
        decode(said(version=2, node=None))
    assert refused.value.kind == "version"


def test_what_is_too_large_is_not_even_parsed():
    """A megabyte is more than any host can have to say."""
    with pytest.raises(SnapshotInvalid) as refused:
        decode("x" * (CHARACTERS_MAX + 1))
    assert refused.value.kind == "oversized"


def test_the_same_state_again_is_recognised():
    """Whatever follows from a host's state need not be worked out again at every report."""
    first = full()
    later = replace(
        first, origin=replace(first.origin, sequence=2, time_s=first.origin.time_s + 60)
    )

    assert later.same_state(first)
    assert not replace(later, reserve_ratio=0.2).same_state(first)


def test_a_report_of_twenty_instances_is_small():
    """Ten thousand hosts report: 40 vCPUs on 64 pCPUs fit in five kilobytes."""
    instances = [
        instance(f"8f6dd4ab-2b6b-4b4a-9c55-1f31c1f5c1{i:02}", (0.5, 0), (0.5, 1)) for i in range(20)
    ]
    assert len(encode(snapshot(*instances))) < 5000
