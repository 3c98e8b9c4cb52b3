"""Host reports as JSON: the reader gets what was written, and rejects anything else."""

import json
from dataclasses import replace

import pytest
from msgspec import structs

from amp_nova.exceptions import ReportInvalid
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.wire.encoding import CHARACTERS_MAX, decode, encode
from amp_nova.wire.host_report import ReportedInstance, ReportedVcpu, Speedup
from tests.host_reports import host_report, instance


def full():
    """A report with all fields."""
    types = (CoreType("slow", 1.0, nominal_ips=2e9), CoreType("fast", 2.5, nominal_ips=5e9))
    topology = Topology(types, (PCpu(0, "slow"), PCpu(1, "fast")), "slow", "sysfs", offline=(2,))
    vcpu = ReportedVcpu(0, None, 8e8, "0-1", "fast", 1, 0.75, Speedup(1.8, 0.05))
    booked = ReportedInstance("a", (vcpu,), "fast", 2.0, "high", "flavor-1", "image-1")
    return host_report(
        booked,
        ReportedInstance("b", (ReportedVcpu(0, cpus_allowed_list="0"),), hint=1.5),
        topology=topology,
        bookable=frozenset({1}),
        reserve_ratio=0.1,
        policy="amp-vm",
        counters="perf",
        healthy=False,
        problems=("instance-1: its booking cannot be read",),
    )


def changed(**other):
    """The full report with other values; ``None`` removes a key."""
    found = json.loads(encode(full()))
    for key, value in other.items():
        where = next((part for part in (found["origin"], found["topology"]) if key in part), found)
        where[key] = value
        if value is None:
            del where[key]
    return json.dumps(found)


def changed_vcpu(position, value):
    """The full report with another value in its first vCPU."""
    found = json.loads(encode(full()))
    found["groups"][0][2][0][1][0][position:] = [value]
    return json.dumps(found)


@pytest.mark.parametrize(
    "report", [full(), host_report(), host_report(instance("a", (0.5, 2), None))]
)
def test_decoding_reverses_encoding(report):
    """No field is lost."""
    assert decode(encode(report)) == report


def test_unknown_keys_are_ignored():
    """Schedulers may be older than agents, or newer: earlier agents sent two more keys."""
    assert decode(changed(colour="green", free_fast_cores=0.5)) == full()
    found = json.loads(encode(full()))
    found["groups"][0][2][0][1][0].append("efficient")
    assert decode(json.dumps(found)) == full()


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
        changed(node=""),
        changed(node="x" * 256),
        changed(node=7),
        changed(sequence=-1),
        changed(sequence=True),
        changed(time_s=None),
        changed(time_s="now"),
        changed(version=None),
        changed(bookable="0-99999999999"),
        changed(core_types=[{"name": "slow", "coefficient": 0, "pcpus": "0"}]),
        changed(core_types=[{"name": "slow", "coefficient": "fast", "pcpus": "0"}]),
        changed(core_types=[{"name": "slow", "pcpus": "0"}, {"name": "fast", "pcpus": "0"}]),
        changed(core_types=[{"name": "slow", "pcpus": "0"}, {"name": "slow", "pcpus": "1"}]),
        changed(groups=[["", "", [["a"], ["a"]]]]),
        changed(groups=["a"]),
        changed(groups={"a": 1}),
        changed(problems=[1]),
        changed(healthy=1),
        changed_vcpu(1, -0.5),
        changed_vcpu(1, 1e400),
        encode(full()).replace("0.75", "NaN"),
        encode(full()).replace("0.75", "1" * 5000),
    ],
)
def test_a_malformed_report_is_rejected_as_a_whole(text):
    """Whatever the bus delivers, no part of it is used."""
    with pytest.raises(ReportInvalid) as rejected:
        decode(text)
    assert rejected.value.kind == "malformed"


def test_a_later_version_is_rejected():
    """Its keys may have another meaning."""
    with pytest.raises(ReportInvalid, match="version 3") as rejected:
        decode(changed(version=3, node=None))
    assert rejected.value.kind == "version"


def test_an_oversized_report_is_not_parsed():
    """No host has a report of a megabyte."""
    with pytest.raises(ReportInvalid) as rejected:
        decode("x" * (CHARACTERS_MAX + 1))
    assert rejected.value.kind == "oversized"


def test_a_repeated_state_is_recognised():
    """Cached results stay valid when only the origin differs."""
    first = full()
    later = replace(
        first, origin=structs.replace(first.origin, sequence=2, time_s=first.origin.time_s + 60)
    )

    assert later.same_state(first)
    assert not replace(later, reserve_ratio=0.2).same_state(first)


def test_a_report_of_twenty_instances_is_small():
    """With 10 000 hosts reporting, 40 vCPUs on 64 pCPUs take less than 4 kB."""
    instances = [
        instance(f"8f6dd4ab-2b6b-4b4a-9c55-1f31c1f5c1{i:02}", (0.5, 0), (0.5, 1)) for i in range(20)
    ]
    assert len(encode(host_report(*instances))) < 4000
