# SPDX-License-Identifier: Apache-2.0
"""Whether a booking fits a host, judged by its agent's report."""

from dataclasses import replace

import pytest
from msgspec import structs

from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.scheduling.host_fit import capacity_of, fit
from amp_nova.wire.host_report import ReportedInstance, ReportedVcpu
from tests.support import hosts
from tests.support.host_reports import host_report, instance, request

CALIBRATED = Topology(
    (CoreType("slow", 1.0, nominal_ips=2e9), CoreType("fast", 2.0, nominal_ips=4e9)),
    (PCpu(0, "slow"), PCpu(1, "fast")),
    "slow",
    "test",
)


def answer(requested, *instances, without=None, pending=None, **fields):
    """The core types an instance gets on the default host, or why it is refused."""
    capacity = capacity_of(host_report(*instances, **fields), without, pending or {})
    found = fit(capacity, requested)
    return found.refused or found.core_types


def test_slow_cores_are_used_first():
    """A vCPU that fits a slow core does not take a fast one."""
    assert answer(request(2, pref_core=1)) == ("slow", "slow")
    assert answer(request(3, pref_core=1)) == ("slow", "slow", "fast")
    assert answer(request(2, pref_core__0=0.5, pref_core__1=1.5)) == ("fast", "slow")


UNKNOWN_SPEED = {"topology": hosts.topology({"slow": (2, None)})}


@pytest.mark.parametrize(
    ("requested", "host", "reason"),
    [
        (request(pref_core=2.5), {}, "more than any core gives"),
        (request(pref_core=1.5, core_type="slow"), {}, "more than any core gives"),
        (request(pref_core=1, core_type="turbo"), {}, "no core type 'turbo'"),
        (request(core_type="turbo"), {}, "no core type 'turbo'"),
        (request(ips="1G"), {}, "not calibrated"),
        (request(pref_core=0.5), UNKNOWN_SPEED, "have no coefficients"),
    ],
)
def test_what_a_host_can_never_hold_is_refused_with_the_reason(requested, host, reason):
    """The reason in the log tells an operator what to change."""
    assert reason in answer(requested, **host)


def test_a_best_effort_instance_with_a_core_type_needs_that_type_only():
    """It books nothing, so a full host takes it."""
    assert answer(request(core_type="fast"), instance("a", (2.0, 2))) == ()


def test_instructions_are_converted_by_nominal_ips_whatever_the_coefficient():
    """A fast core of coefficient 3 that retires 2.5 times as much: 3.7 GIps take 0.74 of it."""
    fast = CoreType("fast", 3.0, nominal_ips=5e9)
    uneven = replace(CALIBRATED, core_types=(CALIBRATED.core_types[0], fast))
    vcpu = ReportedVcpu(0, ips=3.7e9, cpus_allowed_list="0-1", pcpu=1)
    present = ReportedInstance("a", (vcpu,))

    assert answer(request(pref_core=0.75), present, topology=uneven) == ("slow",)
    assert answer(request(pref_core=0.75, core_type="fast"), present, topology=uneven) == ("fast",)
    assert "free" in answer(request(pref_core=0.85, core_type="fast"), present, topology=uneven)
    assert answer(request(ips="5G"), topology=uneven) == ("fast",)
    assert "5.5e+09 instructions per second is more than" in answer(
        request(ips="5.5G"), topology=uneven
    )


def test_pcpus_that_are_not_bookable_have_no_headroom():
    """Nova must not use what cpu_shared_set leaves out."""
    assert "free" in answer(request(2, pref_core=1), bookable=frozenset({0}))


def test_pending_instances_count_before_they_are_reported():
    """The second of two equal requests finds the capacity taken."""
    sent = {"b": (request(pref_core=2),)}
    fragmented = "2 reference cores are free only in fragments"

    assert answer(request(pref_core=2)) == ("fast",)
    assert answer(request(pref_core=2), pending=sent) == fragmented
    assert answer(request(pref_core=2), pending=sent, without="b") == ("fast",)


def test_an_instance_does_not_compete_with_itself():
    """In a resize on the same host it gives up what it has."""
    present = instance("a", (1.5, 2))

    assert "free" in answer(request(pref_core=2), present)
    assert answer(request(pref_core=2), present, without="a") == ("fast",)


def test_an_over_booked_host_is_refused():
    """A booked vCPU without a place comes before newcomers."""
    present = (instance("a", (2.0, 2)), instance("b", (2.0, None)))

    refused = answer(request(pref_core=0.5), *present)
    assert refused == "0.5 reference cores requested, 0.000 free"
    over = (instance("a", (1.5, 2)), instance("b", (1.6, None)))
    assert answer(request(pref_core=0.1), *over) == "it is over-booked"


def test_a_vcpu_on_an_offline_pcpu_needs_another_place_first():
    """The newcomer gets what is left after that."""
    present = instance("a", (1.0, 1))
    report = host_report(present, topology=hosts.topology(offline=(1,)))

    assert fit(capacity_of(report), request(pref_core=1)).core_types == ("fast",)


def pinned(refcores, pcpus, vcpus=1):
    """A request of a guest that Nova pins to some pCPUs."""
    wanted = request(vcpus, pref_core=refcores)
    there = [structs.replace(v, cpus_allowed_list=pcpus) for v in wanted.vcpus]
    return structs.replace(wanted, vcpus=tuple(there))


def test_a_pinned_guest_fits_its_own_pcpus_only():
    """Whatever is free elsewhere, as for NUMA cells; the agent moves one that is not pinned."""
    report = host_report(instance("a", (0.6, 0), allowed={0}))

    assert fit(capacity_of(report), pinned(0.4, "0")).core_types == ("slow",)
    assert fit(capacity_of(report), pinned(0.6, "0")).refused is not None
    assert fit(capacity_of(report), pinned(0.6, "1")).core_types == ("slow",)
    assert fit(capacity_of(report), pinned(0.6, "1-2", vcpus=2)).core_types == ("slow", "fast")
    assert fit(capacity_of(report), pinned(2, "0-1")).refused is not None
    movable = host_report(instance("a", (0.6, 0)))
    assert fit(capacity_of(movable), pinned(0.6, "0")).core_types == ("slow",)


def test_a_pending_pinned_guest_counts_where_it_will_be():
    """Not on the fullest pCPU of the host."""
    report = host_report(instance("a", (0.3, 0)))
    capacity = capacity_of(report, pending={"b": (pinned(0.6, "1"),)})

    assert capacity.complete
    assert fit(capacity, pinned(0.6, "1")).refused is not None
    assert fit(capacity, pinned(0.4, "1")).core_types == ("slow",)
    assert not capacity_of(report, pending=dict.fromkeys("bc", (pinned(0.6, "1"),))).complete
