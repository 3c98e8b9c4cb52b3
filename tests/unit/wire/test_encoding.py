# SPDX-License-Identifier: Apache-2.0
"""Host reports as JSON: the reader gets what was written, and rejects anything else."""

import gc
import json
import weakref
from dataclasses import replace

import pytest
from msgspec import structs

from amp_nova.exceptions import ReportInvalid
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.wire.encoding import CHARACTERS_MAX, decode, encode
from amp_nova.wire.host_report import VCPUS_MAX, ReportedInstance, ReportedVcpu, Speedup
from tests.support.host_reports import host_report, instance


def full():
    """A report with all fields."""
    types = (CoreType("slow", 1.0, nominal_ips=2e9), CoreType("fast", 2.5, nominal_ips=5e9))
    topology = Topology(types, (PCpu(0, "slow"), PCpu(1, "fast")), "slow", "sysfs")
    vcpu = ReportedVcpu(0, None, 8e8, "0-1", "fast", 1, 0.75, Speedup(1.8, 0.05))
    booked = ReportedInstance("a", (vcpu,), "fast", 2.0, "high", "flavor-1", "image-1")
    return host_report(
        booked,
        ReportedInstance("b", (ReportedVcpu(0, cpus_allowed_list="0"),), hint=1.5),
        topology=topology,
        bookable=frozenset({1}),
        reserve_ratio=0.1,
        healthy=False,
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
    "report",
    [
        full(),
        host_report(),
        host_report(instance("a", (0.5, 2), None)),
        host_report(topology=replace(host_report().topology, one_type=True)),
    ],
)
def test_decoding_reverses_encoding(report):
    """No field is lost."""
    assert decode(encode(report)) == report


def test_unknown_keys_are_ignored():
    """Schedulers may be older than agents, or newer: earlier agents sent more keys."""
    assert decode(changed(counters="perf", problems=["a"], free_fast_cores=0.5)) == full()
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
        "[" * 10_000,
        changed(node=""),
        changed(node="x" * 256),
        changed(node="\x1b[2J"),
        changed(sequence=-1),
        changed(time_s=None),
        changed(bookable="0-8192"),
        changed(core_types=[{"name": f"t{n}", "pcpus": str(n)} for n in range(7)]),
        changed(core_types=[{"name": "a", "pcpus": "0-8", "siblings": ["0-8"]}]),
        changed(core_types=[{"name": "a", "pcpus": "0-3", "siblings": ["0-1", "1-2"]}]),
        changed(core_types=[{"name": "a", "pcpus": "0-3", "siblings": ["3-4"]}]),
        changed(groups=[["", "", [["a", [[0], [0]]]]]]),
        changed_vcpu(4, "no such type"),
        changed(version=None),
        changed(bookable="0-99999999999"),
        changed(core_types=[]),
        changed(core_types=[{"name": "slow", "coefficient": 0, "pcpus": "0"}]),
        changed(core_types=[{"name": "slow", "coefficient": 5e-324, "pcpus": "0"}]),
        changed(core_types=[{"name": "slow", "coefficient": 1e4, "pcpus": "0"}]),
        changed(core_types=[{"name": "slow", "nominal_ips": 1e-300, "pcpus": "0"}]),
        changed(core_types=[{"name": "slow", "pcpus": "0"}, {"name": "fast", "pcpus": "0"}]),
        changed(core_types=[{"name": "slow", "pcpus": "0"}, {"name": "slow", "pcpus": "1"}]),
        changed(groups=[["", "", [["a"], ["a"]]]]),
        changed(groups=["a"]),
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


def vcpus(count, allowed="0"):
    """A report about one instance with as many vCPUs."""
    many = [[index, None, None, allowed] for index in range(count)]
    return changed(groups=[["", "", [["a", many]]]])


@pytest.mark.parametrize(
    "text",
    [
        "x" * (CHARACTERS_MAX + 1),
        "[" * 100_000,
        vcpus(20_000),
        changed(bookable=",".join(["0-4095"] * 50)),
        changed(core_types=[{"name": "a", "pcpus": "0-2047", "siblings": ["0,1"] * 2048}]),
        changed(groups=[["", "", [[str(n), [[0, None, None, f"{n}-1900"]]] for n in range(64)]]]),
    ],
)
def test_an_oversized_report_is_rejected_before_it_costs_anything(text):
    """By its length, by what its values would take, or by what its CPU lists would."""
    with pytest.raises(ReportInvalid) as rejected:
        decode(text)
    assert rejected.value.kind == "oversized"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (vcpus(VCPUS_MAX + 1), "2049 vCPUs, more than 2048|length <= 2048"),
        (
            changed(groups=[["", "", [[f"{g}-{n}"] for n in range(300)]] for g in range(4)]),
            "1200 instances, more than 1024",
        ),
        (changed(core_types=[{"name": "a", "pcpus": "0-2048"}]), "2049 pCPUs, more than 2048"),
    ],
)
def test_a_host_larger_than_any_is_refused_with_the_figure(text, why):
    """The log tells an operator why a very large host takes no bookings."""
    with pytest.raises(ReportInvalid, match=why):
        decode(text)


def test_a_large_host_is_accepted():
    """Two sockets of today, with four vCPUs for each of their 512 hardware threads."""
    threads = tuple(PCpu(i, "slow", (i - i % 2, i - i % 2 + 1)) for i in range(512))
    core_type = CoreType("slow", 1.0, threads_per_core=2, smt_busy_factor=0.6)
    measured = ReportedVcpu(0, None, None, "0-511", None, None, 0.9213, Speedup(1.4523, 0.0523))
    instances = (
        ReportedInstance(
            f"8f6dd4ab-2b6b-4b4a-9c55-{n:012}",
            tuple(structs.replace(measured, index=i) for i in range(4)),
            flavor=f"8f6dd4ab-2b6b-4b4a-9c55-{n % 20:012}",
            image=f"8f6dd4ab-2b6b-4b4a-9c55-{n % 20:012}",
        )
        for n in range(512)
    )
    large = host_report(*instances, topology=Topology((core_type,), threads, "slow", "test"))

    read = decode(encode(large))
    assert read.by_uuid == large.by_uuid
    assert read.topology == large.topology


def test_what_reports_share_lives_as_long_as_they_do():
    """Hosts of one model have one topology; nothing is left of the reports of a host that lies."""
    text = changed(bookable="0-123")
    one, other = decode(text), decode(text)
    assert one.topology is other.topology
    assert one.bookable is other.bookable

    shared = weakref.ref(one.topology), weakref.ref(one.bookable)
    del one, other
    gc.collect()

    assert [each() for each in shared] == [None, None]
