# SPDX-License-Identifier: Apache-2.0
"""What ``status``, ``explain`` and the log say about a cycle."""

import json
from dataclasses import replace

import pytest
from msgspec import structs

from amp_nova.agent.loop import Loop
from amp_nova.agent.operator import status
from amp_nova.control.context import Home
from amp_nova.model.allocation import Change, Changes, Failure, Outcome, Step
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.profiling.profiles import VcpuProfile
from amp_nova.profiling.speedup import SpeedupEstimate
from tests.support import reports
from tests.support.hosts import FakeHost

NAME = "instance-00000001"
UUID = f"uuid-of-{NAME}"


def explained(*vcpus, **said):
    """The sentences about an instance with these vCPUs."""
    found = reports.cycle(reports.instance(*vcpus, **said))
    return status.explain(found, UUID)["because"]


def test_a_speedup_comes_with_its_error():
    """As the profile has it; nobody is told a speedup without knowing how sure it is."""
    measured = VcpuProfile(speedup=SpeedupEstimate(1.5, 0.02, "sampling"))
    vcpu = replace(reports.booked(), profile=measured)

    (found,) = status.status(reports.cycle(reports.instance(vcpu)))

    expected = {"ratio": 1.5, "error": 0.02, "source": "sampling"}
    assert found["vcpus"][0]["speedup"] == expected
    said = "Its own work is 1.50 +- 0.02 times as fast on the fastest core type as on the slowest"
    assert f"{said} (it ran on both)." in explained(vcpu)


def test_status_has_every_figure_of_a_vcpu():
    """Booked, delivered, quota, core type and shortfall by cause, as plain JSON."""
    (found,) = status.status(reports.cycle(reports.instance(reports.booked())))

    assert json.loads(json.dumps(found)) == {
        "instance": UUID,
        "domain": "instance-00000001",
        "name": "my instance-00000001",
        "project": "5ac0ffee",
        "problem": None,
        "vcpus": [
            {
                "index": 0,
                "kind": "pref_core",
                "booked_refcores": 0.5,
                "booked_ips": None,
                "delivered_refcores": 0.4875,
                "delivered_ips": None,
                "delivered_ratio": 0.975,
                "quota_cores": 0.25,
                "core_type": "fast",
                "pcpus": [2, 3],
                "shortfall_refcore_s": {
                    "throttle": 0.0,
                    "contention": 0.25,
                    "core_type": 0.0,
                    "frequency": 0.0,
                    "smt": 0.0,
                },
                "speedup": None,
                "note": None,
            }
        ],
    }


def test_status_is_sorted_by_domain_and_unknown_values_are_null():
    """The order does not depend on libvirt's; unknown is never 0 or 1."""
    names = ("instance-2", "instance-10", "instance-1")
    instances = [reports.instance(reports.best_effort(), name=n) for n in names]

    found = status.status(reports.cycle(*instances))

    assert [i["domain"] for i in found] == ["instance-1", "instance-10", "instance-2"]
    (vcpu,) = found[0]["vcpus"]
    absent = ("booked_refcores", "booked_ips", "delivered_refcores", "delivered_ratio")
    assert [vcpu[key] for key in (*absent, "quota_cores", "core_type")] == [None] * 6


def test_booking_is_explained_from_entitlement_to_delivery():
    """Every figure, where it comes from, and the shortfall by cause."""
    late = "it may be 182 ms behind a core of that speed"
    lately = "it was at most 40 ms behind in this minute"

    assert explained(reports.booked()) == [
        "vCPU 0 books 0.5 reference cores.",
        "It is kept on core type fast (pCPUs 2, 3), coefficient 2 (calibration).",
        f"Its quota is 25000 us in every 100000 us (25.00%): 0.5 refcores / 2 on fast; {late}.",
        f"In the last window it got 97.5% of what it was owed; {lately}.",
        "Not delivered so far, in reference-core seconds: 0.250 by contention.",
    ]


def test_banked_time_is_explained():
    """A limit above the booking: unused time is banked and may be used now."""
    vcpu = reports.booked()
    vcpu = altered(vcpu, limit=Bandwidth(50_000, 100_000), banked_s=0.75)

    said = "It has banked 0.75 s of its booking that it did not use, and may use them now."
    assert said in explained(vcpu)
    assert not [line for line in explained(reports.booked()) if "banked" in line]


def altered(vcpu, reading=None, **entitlement):
    """The vCPU with another entitlement, and another reading if one is given."""
    other = structs.replace(vcpu.entitlement, **entitlement)
    return replace(vcpu, entitlement=other, reading=reading or vcpu.reading)


FROM_FLAVOR = {
    "allowed": frozenset({2, 3}),
    "governed_by": "flavor",
    "reason": "amp:core_type=fast",
    "home": Home("fast"),
}
IPS = {"governed_by": "ips", "reason": "2.5e+09 Ips, as counted"}


@pytest.mark.parametrize(
    ("vcpu", "text"),
    [
        (
            reports.ips(note="unverifiable: no counter"),
            """\
vCPU 0 books 2.5e+09 instructions per second.
It has no CPU quota.
Unverifiable: no counter.""",
        ),
        (  # it changes many times a second, so it is a share rather than a quota and a period
            altered(reports.ips(), reports.reading(), **IPS),
            """\
vCPU 0 books 2.5e+09 instructions per second.
Its quota is 25.00% of a pCPU at the moment: 2.5e+09 Ips, as counted.""",
        ),
        (
            altered(reports.best_effort(), **FROM_FLAVOR),
            """\
vCPU 0 is best effort: it books nothing.
It is kept on core type fast (pCPUs 2, 3), coefficient 2 (calibration).
It has no CPU quota.""",
        ),
        (  # a limit that amp-nova did not set has no reason
            altered(reports.best_effort(), reports.reading(), cpu_weight=5),
            """\
vCPU 0 is best effort: it books nothing.
Its quota is 25000 us in every 100000 us (25.00%).
Its CPU weight is 5.""",
        ),
    ],
    ids=["not counted", "Ips", "core type alone", "limit of others"],
)
def test_other_vcpus_are_explained(vcpu, text):
    """What they book, where they are kept, and what limits them."""
    assert explained(vcpu) == text.splitlines()


def test_a_problem_comes_first_and_failure_or_note_last():
    """Why a booking is not enforced is the first thing to know, also if no vCPU can be read."""
    said = {"problem": "amp:limit='x' is not allowed"}
    problem = "Its booking is not enforced: amp:limit='x' is not allowed."

    assert explained(**said) == [problem]
    lines = explained(reports.booked(failure="vCPU 0 cannot be changed"), **said)
    assert (lines[0], lines[-1]) == (problem, "VCPU 0 cannot be changed.")
    assert explained(reports.booked(note="over-booked"))[-1] == "Over-booked."


def test_changes_are_described_for_people():
    """Which vCPU of which domain gets what, and why; and what failed."""
    one, two = reports.booked(), reports.booked(1, failure="the group is read-only")
    steps = (Step(bandwidth=Bandwidth(25000, 100000)), Step(pcpus=frozenset({3, 2})))
    why, other = "0.5 refcores / 2 on fast", "instance-00000002"
    changes = Changes(
        (Change((UUID, 0), steps, why), Change((UUID, 1), (Step(bandwidth=None),), why)),
        {UUID: 1000, f"uuid-of-{other}": 5},
    )
    best_effort = reports.instance(reports.best_effort(), name=other)
    cycle = reports.cycle(reports.instance(one, two), best_effort, changes=changes)
    failed = Failure("read_only", "its CPU weight cannot be changed: Read-only file system")
    outcome = Outcome(cycle.outcome.failures, weight_failures={f"uuid-of-{other}": failed})

    assert status.describe(replace(cycle, outcome=outcome)) == [
        f"{NAME} vCPU 0: quota 25000/100000 us, pCPUs 2-3 (0.5 refcores / 2 on fast)",
        f"{NAME} vCPU 1: no quota (0.5 refcores / 2 on fast) FAILED: the group is read-only",
        f"{NAME}: CPU weight 1000",
        f"{other}: CPU weight 5 FAILED: {failed.message}",
    ]


@pytest.mark.parametrize(
    ("vcpus", "end"),
    [(2, ": policies keep them on core types with a pCPU for each: slow."), (3, ".")],
)
def test_a_parallel_program_is_explained(vcpus, end):
    """Two slow pCPUs and a fast one: two vCPUs stay on the slow ones, three may use all."""
    host = FakeHost()
    host.add("vm", {"parallel": "true"}, vcpus)

    because = status.explain(Loop(host, host).cycle(), "vm")["because"]

    said = "Its flavor says that its vCPUs run one parallel program (amp:parallel=true)"
    assert f"{said}{end}" in because


def test_a_key_that_books_nothing_is_explained():
    """Nova accepted it, and nothing else says why the server is best effort."""
    said = explained(reports.best_effort(), specs={"AMP:pref_core": "1"})

    assert said[0] == "'AMP:pref_core' books nothing, because Nova ignores it: write amp:pref_core."
