"""What is exported and explained of estimates."""

from dataclasses import replace

import pytest

from amp_nova.agent.loop import Loop
from amp_nova.agent.operator import status
from amp_nova.model.topology import CoreType
from amp_nova.plugins import load_policy
from amp_nova.profiling.speedup import Estimate
from amp_nova.profiling.vcpu_profile import VcpuProfile
from amp_nova.sim.host import SimHost
from tests import reports
from tests.reports import booked, instance
from tests.unit.agent.publish.test_metrics import VCPU, Scrape
from tests.unit.sim.builders import guest, topology

KNOWN = VcpuProfile(1.6, 0.8, Estimate(1.12, 0.03, "misses"), {"fast": 1.15})


def known():
    """A report of one vCPU of which everything is known."""
    vcpu = booked()
    vcpu = replace(vcpu, insight=KNOWN, promise=replace(vcpu.promise, coefficient=1.15))
    return replace(reports.report(instance(vcpu)), coefficient_drift={"fast": 0.97})


def test_estimates_are_exported():
    """Score, speed-up with source and error, own coefficient, and drift by core type."""
    scrape = Scrape(known())

    assert scrape.value("amp_vcpu_efficiency_ratio", **VCPU) == 0.8
    assert scrape.value("amp_vcpu_speedup_ratio", source="misses", **VCPU) == 1.12
    assert scrape.value("amp_vcpu_speedup_error_ratio", source="misses", **VCPU) == 0.03
    assert scrape.value("amp_vcpu_coefficient_ratio", core_type="fast", **VCPU) == 1.15
    assert scrape.value("amp_coefficient_drift_ratio", core_type="fast") == 0.97


def test_slowdown_and_unfairness_are_those_of_the_simulated_guests():
    """Of best effort alone; the agent's estimate agrees with what the simulator knows."""
    guests = [guest(f"gains-{speed}", speed=speed) for speed in (2.0, 1.2)]
    host = SimHost(topology(slow=2), [*guests, guest("third"), guest("booked", pref_core="0.1")])
    loop = Loop(host, host, policy=load_policy("amp-fair"), stopwatch=lambda: 0.0)
    for second in range(400):
        host.advance(float(second))
        found = loop.cycle()

    scrape = Scrape(found)

    got = {
        labels["domain"]: value for labels, value in scrape.samples("amp_instance_slowdown_ratio")
    }
    real = {name: host.outcome(name) for name in got}
    assert set(got) == {"gains-2.0", "gains-1.2", "third"}
    for name, ratio in got.items():
        assert ratio == pytest.approx(real[name].alone_fastest / real[name].speed, rel=0.03)
    most = max(got.values()) / min(got.values())
    assert scrape.value("amp_host_unfairness_ratio") == pytest.approx(most)


def test_what_is_not_known_has_no_sample():
    """As on a host without counters."""
    scrape = Scrape(reports.report(instance(booked())))

    for name in (
        "amp_vcpu_efficiency_ratio",
        "amp_vcpu_speedup_ratio",
        "amp_vcpu_speedup_error_ratio",
        "amp_vcpu_coefficient_ratio",
        "amp_coefficient_drift_ratio",
        "amp_instance_slowdown_ratio",
        "amp_host_unfairness_ratio",
    ):
        assert scrape.samples(name) == []


def test_explain_says_what_the_work_gains_and_how_that_is_known():
    """One sentence, with the error and where it comes from."""
    lines = status.explain(known(), "uuid-of-instance-00000001")["because"]

    assert (
        "Its own work is 1.12 +- 0.03 times as fast on the fastest core type as on the slowest "
        "(by its cache misses)." in lines
    )


def test_causes_that_cannot_be_told_have_no_sample():
    """Frequency needs cycles and a nominal clock, SMT a calibration that measured it."""
    told = replace(
        reports.report(instance(booked())),
        topology=replace(
            reports.topology(),
            core_types=(CoreType("slow", 1.0), CoreType("fast", 2.0, smt_busy_factor=0.6)),
        ),
    )
    name = "amp_vcpu_shortfall_refcore_seconds_total"

    causes = {labels["cause"] for labels, _ in Scrape(told).samples(name)}

    assert causes == {"throttle", "contention", "core_type", "smt"}
