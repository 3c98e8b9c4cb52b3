# SPDX-License-Identifier: Apache-2.0
"""Builders of the records of control cycles, as the loop makes them."""

from dataclasses import replace

from msgspec import structs

from amp_nova.accounting.accounts import of_instance
from amp_nova.accounting.delivery import Account, Last, Ratios
from amp_nova.agent.cycle import Cycle, DomainRecord, Totals, VcpuRecord
from amp_nova.agent.state import instances
from amp_nova.control.context import Home, Share
from amp_nova.control.entitlement import Entitlement
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.allocation import Failure, Outcome
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Domain, DomainReading, Observation, VcpuReading
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.profiling.counter_windows import CounterProfile
from amp_nova.profiling.profiles import ProfileEntry, Profiles

HALF = Bandwidth(25000, 100000)
ALL = frozenset(range(4))
TIME_NS = 10**9


class FakeAccounts(dict):
    """A FAKE of ``Accounts``: the accounts of vCPUs, as given."""

    def of(self, key):
        """The account of one vCPU."""
        return self[key]


def topology():
    """Two slow pCPUs, and two fast ones that are twice as fast."""
    types = (CoreType("slow", 1.0, "calibration"), CoreType("fast", 2.0, "calibration"))
    pcpus = tuple(PCpu(i, "slow" if i < 2 else "fast") for i in range(4))
    return Topology(types, pcpus, "slow", "configuration")


def domain(name="instance-00000001", **said):
    """A domain of Nova's."""
    usual = {
        "resource": f"uuid-of-{name}",
        "vcpus": 1,
        "project": "5ac0ffee",
        "display_name": f"my {name}",
        "flavor": "m1.half",
    }
    return Domain(name=name, **{**usual, **said})


def reading(index=0, bandwidth=HALF, pcpus=(2, 3)):
    """What was read of a vCPU."""
    return VcpuReading(index, 0, 0, 0, bandwidth, frozenset(pcpus), ALL)


def account(**said):
    """An account after a window, of 7.5 s on slow and 2.5 s on fast cores."""
    usual = {
        "cpu_s": (7.5, 2.5),
        "ref_s": 12.5,
        "shortfall_ref_s": (0.0, 0.25, 0.0, 0.0, 0.0),
        "last": Last(ratio=0.975, refcores=0.4875, behind_s=0.04),
    }
    return Account(**{**usual, **said})


def booked(index=0, refcores=0.5, **said):
    """A vCPU that books reference cores and is kept on the fast ones."""
    entitlement = Entitlement(
        ("", index),
        VcpuBooking(index, refcores),
        ALL,
        frozenset({2, 3}),
        governed_by="booking",
        reason=f"{refcores:g} refcores / 2 on fast",
        note=said.get("note"),
        home=Home("fast", 2, refcores / 2),
        share=Share(refcores / 2),
        limit=HALF,
    )
    return VcpuRecord(
        said.get("reading", reading(index)),
        entitlement,
        said.get("account", account()),
        said.get("failure"),
    )


def ips(index=0, value=2.5e9, **said):
    """A vCPU that books instructions, which nothing can count."""
    booking = VcpuBooking(index, ips=value)
    entitlement = Entitlement(("", index), booking, ALL, note=said.get("note"))
    return VcpuRecord(reading(index, None, ALL), entitlement)


def best_effort(index=0):
    """A vCPU that books nothing, before anything is known of it."""
    return VcpuRecord(reading(index, None, ALL), Entitlement(("", index), VcpuBooking(index), ALL))


def instance(*vcpus, name="instance-00000001", problem=None, **said):
    """A domain with these vCPUs."""
    found = domain(name, **said)
    keyed = tuple(
        replace(
            v, entitlement=structs.replace(v.entitlement, key=(found.resource, v.reading.index))
        )
        for v in vcpus
    )
    ratios = of_instance(v.account.ratios for v in keyed)
    return DomainRecord(found, keyed, ratios, problem)


def windows(*counts):
    """Delivered ratios of windows, by bucket; each counts as 1 in the sum."""
    return Ratios(counts, float(sum(counts)))


def cycle(*domains, counters=None, of=None, changes=None, **totals):
    """A cycle after which the record of these domains is as given.

    ``counters``: counter profiles by vCPU; ``of``: the host's topology; ``changes``: what was
    changed.
    """
    of = of or topology()
    vcpus = {(d.domain.resource, v.reading.index): (d, v) for d in domains for v in d.vcpus}
    seen = Observation(
        TIME_NS,
        of,
        tuple(
            DomainReading(d.domain, tuple(v.reading for v in d.vcpus), d.problem) for d in domains
        ),
    )
    unknown = CounterProfile((None,) * len(of.core_types))
    failed = {key: Failure("refused", v.failure) for key, (_, v) in vcpus.items() if v.failure}
    given = {} if changes is None else {"changes": changes}
    made = Cycle(
        seen,
        instances.read({}, seen, adaptive=False),
        FakeAccounts({key: v.account for key, (_, v) in vcpus.items()}),
        Profiles(
            core_types=of.core_types,
            entries={
                key: ProfileEntry(
                    d.domain.incarnation,
                    None,
                    TIME_NS,
                    v.reading,
                    (counters or {}).get(key, unknown),
                    profile=v.profile,
                )
                for key, (d, v) in vcpus.items()
            },
        ),
        {key: v.entitlement for key, (_, v) in vcpus.items()},
        outcome=Outcome(failed),
        totals=Totals(cycles=1, **totals),
        stage_s={"observe": 0.001, "apply": 0.0005},
        **given,
    )
    assert made.domains == domains
    return made
