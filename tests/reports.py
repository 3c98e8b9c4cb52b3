"""Builders of cycle reports, as the loop makes them."""

from amp_nova.accounting.delivery import Account
from amp_nova.agent.cycle import CycleReport, DomainReport, Totals, VcpuReport
from amp_nova.control.entitlement import Promise
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.model.allocation import Grant
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Domain, VcpuReading
from amp_nova.model.topology import CoreType, PCpu, Topology

HALF = Bandwidth(25000, 100000)


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
    return VcpuReading(index, 0, 0, 0, bandwidth, frozenset(pcpus), frozenset(range(4)))


def account(**said):
    """An account after two windows, of 7.5 s on slow and 2.5 s on fast cores."""
    usual = {
        "cpu_s": (7.5, 2.5),
        "ref_s": 12.5,
        "shortfall_ref_s": (0.0, 0.25, 0.0, 0.0, 0.0),
        "windows": 2,
        "ratio": 0.975,
        "delivered_refcores": 0.4875,
    }
    return Account(**{**usual, **said})


def booked(index=0, refcores=0.5, resource="uuid-of-instance-00000001", **said):
    """A vCPU that books reference cores and is kept on the fast ones."""
    why = f"{refcores:g} refcores / 2 on fast"
    grant = Grant((resource, index), frozenset({2, 3}), HALF, True, why)
    promise = Promise(
        VcpuBooking(index, "pref_core", refcores=refcores), grant, "fast", 2, said.get("note")
    )
    return VcpuReport(said.get("reading", reading(index)), promise, account(), said.get("failure"))


def ips(index=0, value=2.5e9, **said):
    """A vCPU that books instructions, which nothing can count."""
    promise = Promise(VcpuBooking(index, "ips", ips=value), note=said.get("note"))
    return VcpuReport(reading(index, None, (0, 1, 2, 3)), promise, Account())


def best_effort(index=0):
    """A vCPU that books nothing, before anything is known of it."""
    return VcpuReport(reading(index, None, range(4)), Promise(VcpuBooking(index)), Account())


def instance(*vcpus, name="instance-00000001", ratios=(), problem=None, **said):
    """A domain with these vCPUs."""
    return DomainReport(domain(name, **said), vcpus, ratios, sum(ratios) * 1.0, problem)


def report(*domains, **totals):
    """A cycle that saw these domains."""
    stages = {"observe": 0.001, "apply": 0.0005}
    return CycleReport(10**9, topology(), domains, 0, Totals(cycles=1, **totals), stages)
