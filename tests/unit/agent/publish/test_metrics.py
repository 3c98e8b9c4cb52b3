# SPDX-License-Identifier: Apache-2.0
"""The agent's metrics as Prometheus reads them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from oslo_config import cfg
from prometheus_client import CollectorRegistry, generate_latest, parser

from amp_nova.accounting.delivery import RATIO_BUCKETS, Last
from amp_nova.agent.loop import Loop
from amp_nova.agent.publish import host_info, metrics
from amp_nova.agent.publish.exporter import Exporter
from amp_nova.agent.publish.host_info import HostInfo
from amp_nova.model.observation import Counts
from amp_nova.nova_plugins import options
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.metrics import Metrics as SchedulerMetrics
from amp_nova.plugins import load_policy
from amp_nova.profiling.counter_windows import CounterProfile, Mean, Smoothed, TypeProfile
from amp_nova.profiling.profiles import VcpuProfile
from amp_nova.profiling.speedup import SpeedupEstimate
from amp_nova_lab.host import SimHost
from tests.support import reports
from tests.support.monitoring import metric_rows
from tests.support.reports import best_effort, booked, instance, ips
from tests.unit.lab.builders import guest, topology

NAME = "instance-00000001"
INSTANCE = {"domain": NAME, "resource": f"uuid-of-{NAME}", "project": "5ac0ffee"}
VCPU = {**INSTANCE, "vcpu": "0"}
OTHER = {**INSTANCE, "domain": "instance-00000002", "resource": "uuid-of-instance-00000002"}
"""It books Ips that nothing can count, and one of its vCPUs cannot be read."""
WINDOWS = reports.account(ratios=reports.windows(0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 1))
DOC = Path(__file__).parents[4] / "doc/source/reference/metrics.rst"


class Scrape:
    """What one exporter serves, read back."""

    def __init__(self, *found, detail="vcpu"):
        self.exporter = Exporter(CollectorRegistry(), clock=lambda: 1000.0, detail=detail)
        for cycle in found:
            self.exporter.update(cycle)

    @property
    def text(self):
        """The exposition as served."""
        return generate_latest(self.exporter.registry).decode()

    @property
    def families(self):
        """The agent's own families by name."""
        found = parser.text_string_to_metric_families(self.text)
        return {f.name: f for f in found if f.name.startswith("amp_")}

    def value(self, name, /, **labels):
        """The value of one sample, ``None`` if there is no such sample."""
        return self.exporter.registry.get_sample_value(name, labels)

    def samples(self, name):
        """All samples of a name, as pairs of labels and value."""
        found = (s for f in self.families.values() for s in f.samples)
        return [(s.labels, s.value) for s in found if s.name == name]


@pytest.fixture
def full():
    """A scrape with a value for nearly every metric."""
    reading = structs.replace(reports.reading(), counts=Counts(12345))
    counted = booked(account=WINDOWS, reading=reading)
    scrape = Scrape(
        reports.cycle(
            instance(counted),
            instance(
                ips(note="unverifiable: no counter"),
                name="instance-00000002",
                problem="vCPU 1 has no CPU cgroup of its own",
            ),
            instance(best_effort(), name="instance-00000003"),
            migrations={("slow", "fast"): 3},
            drift={"quota": 2},
            failures={"read_only": 4},
            plans_rejected=5,
            writes=6,
        ),
    )
    scrape.exporter.agent.calibration = host_info.CalibrationStatus(900.0, {"fast": 0.04})
    scrape.exporter.admits = HostInfo("host", reserve_ratio=0.1)
    scrape.exporter.agent.counters = {("tcg", ""): 3, ("none", "no PMU"): 1}
    scrape.exporter.agent.hypervisor_up = True
    scrape.exporter.agent.lateness_s = 0.002
    return scrape


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("amp_vcpu_booked_refcores", VCPU, 0.5),
        ("amp_vcpu_delivered_refcores", VCPU, 0.4875),
        ("amp_vcpu_delivered_ratio", VCPU, 0.975),
        ("amp_vcpu_shortfall_refcore_seconds_total", {**VCPU, "cause": "contention"}, 0.25),
        ("amp_vcpu_cpu_seconds_total", {**VCPU, "core_type": "slow"}, 7.5),
        ("amp_vcpu_reference_cpu_seconds_total", VCPU, 12.5),
        ("amp_instance_shortfall_refcore_seconds_total", {**INSTANCE, "cause": "contention"}, 0.25),
        ("amp_instance_reference_cpu_seconds_total", INSTANCE, 12.5),
        ("amp_host_booked_refcores", {}, 0.5),
        ("amp_host_delivered_refcores", {"kind": "booked"}, 0.4875),
        ("amp_host_shortfall_refcore_seconds_total", {"cause": "contention"}, 0.25),
        ("amp_host_cpu_seconds_total", {"core_type": "slow"}, 7.5),
        ("amp_host_unenforced_vcpus", {"reason": "host"}, 1.0),
        ("amp_host_unenforced_vcpus", {"reason": "unverifiable"}, 1.0),
        ("amp_vcpu_quota_cores", VCPU, 0.25),
        ("amp_vcpu_booked_ips", {**OTHER, "vcpu": "0"}, 2.5e9),
        ("amp_vcpu_booked_refcores", {**OTHER, "vcpu": "0"}, None),
        ("amp_vcpu_unenforced_info", {**OTHER, "vcpu": "0", "reason": "unverifiable"}, 1.0),
        ("amp_instance_info", {**INSTANCE, "name": f"my {NAME}", "flavor": "m1.half"}, 1.0),
        ("amp_instance_problem_info", {**OTHER, "reason": "host"}, 1.0),
        ("amp_core_type_coefficient_ratio", {"core_type": "fast", "source": "calibration"}, 2.0),
        ("amp_core_type_coefficient_error_ratio", {"core_type": "fast"}, 0.04),
        ("amp_policy_info", {"policy": "none"}, 1.0),
        ("amp_host_headroom_refcores", {"core_type": "slow"}, 1.8),
        ("amp_migrations_total", {"from": "slow", "to": "fast"}, 3.0),
        ("amp_enforcement_drift_total", {"cause": "quota"}, 2.0),
        ("amp_enforcement_drift_total", {"cause": "affinity"}, 0.0),
        ("amp_actuation_failures_total", {"reason": "read_only"}, 4.0),
        ("amp_actuation_failures_total", {"reason": "refused"}, 0.0),
        ("amp_plans_rejected_total", {}, 5.0),
        ("amp_writes_total", {}, 6.0),
        ("amp_calibration_timestamp_seconds", {}, 900.0),
        ("amp_cycle_duration_seconds_sum", {"stage": "observe"}, 0.001),
        ("amp_cycle_duration_seconds_count", {"stage": "apply"}, 1.0),
        ("amp_cycle_last_success_timestamp_seconds", {}, 1000.0),
        ("amp_cycle_lateness_seconds", {}, 0.002),
        ("amp_counters_info", {"source": "tcg"}, 1.0),
        ("amp_vcpu_instructions_total", VCPU, 12345.0),
        ("amp_hypervisor_up", {}, 1.0),
    ],
)
def test_metric_matches_the_contract(full, name, labels, value):
    """Name, labels and value."""
    assert full.value(name, **labels) == value


def test_every_metric_is_documented():
    """Under its full name, as a term of the reference, which names no other."""
    text, names = DOC.read_text(), {row.name for row in metric_rows()}
    conf = options.register(cfg.ConfigOpts())
    conf([])
    for family in SchedulerMetrics(HostStates(conf)).collect():
        names.add(family.name + "_total" * (family.type == "counter"))
    terms = re.findall(r"^``amp_.*", text, re.MULTILINE)

    assert {name.strip(" `") for line in terms for name in line.split(",")} == names
    assert set(re.findall(r"``(amp_[a-z_]+)``", text)) == names


def test_samples_follow_the_conventions(full):
    """Counters end in _total, infos are 1, ratios are around 1, nothing is in percent.

    All series of an instance or vCPU can be joined with each other. What is unknown has no sample:
    a best-effort vCPU without an account has no series yet, and without counters none has.
    """
    for family in full.families.values():
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            name, labels = sample.name, sample.labels
            assert (family.type == "counter") == name.endswith("_total"), name
            assert not re.search("percent|efficiency|speedup|drift_ratio|slowdown|unfair", name)
            if name.endswith("_info"):
                assert sample.value == 1
            if name.endswith("_ratio") and "coefficient" not in name:
                assert 0 <= sample.value <= 1.5, name
            if name.startswith(("amp_vcpu", "amp_instance")):
                assert set(INSTANCE) <= set(labels), name
                assert name.startswith("amp_instance") or "vcpu" in labels
            assert "pcpu" not in labels
            if labels.get("domain") == "instance-00000003":
                assert name == "amp_instance_info"


def test_before_the_first_cycle_only_the_version_is_served():
    """No other family has a sample."""
    with_samples = {f.name for f in Scrape().families.values() if f.samples}

    assert with_samples == {"amp_build_info"}


def test_series_end_with_their_instance(full):
    """No series of an instance outlives it."""
    full.exporter.update(reports.cycle(instance(booked(), name="instance-00000009")))

    domains = {s.labels.get("domain") for f in full.families.values() for s in f.samples}

    assert domains - {None} == {"instance-00000009"}


def test_histogram_of_ratios_is_cumulative(full):
    """A bucket counts every minute up to its bound; an instance has the one that matters.

    Another, "+Inf", would repeat its count.
    """
    buckets = full.samples("amp_host_delivered_ratio_bucket")

    assert [labels["le"] for labels, _ in buckets] == [*map(str, RATIO_BUCKETS), "+Inf"]
    assert [value for _, value in buckets] == [0, 0, 1, 1, 3, 3, 3, 3, 3, 3, 3, 4]
    assert full.value("amp_host_delivered_ratio_count") == 4
    assert full.samples("amp_instance_delivered_ratio_bucket") == [
        ({**INSTANCE, "le": "0.95"}, 1.0)
    ]
    assert full.value("amp_instance_delivered_ratio_count", **INSTANCE) == 4
    assert full.value("amp_instance_delivered_ratio_sum", **INSTANCE) == 4.0


def test_each_level_of_detail_adds_series():
    """Of the host alone, also of instances, also of vCPUs; rules of hosts need the first alone."""
    cycle = reports.cycle(instance(booked(account=WINDOWS), booked(1)))
    served = {
        level: {line.partition(" ")[0] for line in Scrape(cycle, detail=level).text.splitlines()}
        for level in metrics.DETAILS
    }

    assert served["host"] < served["instance"] < served["vcpu"]
    assert not any("domain=" in series for series in served["host"])
    assert not any("vcpu=" in series for series in served["instance"])


def test_a_host_of_a_hundred_instances_has_few_series_by_default():
    """Of 4 vCPUs each, all with a booking and counters, that lost capacity to three causes."""
    account = reports.account(
        ratios=WINDOWS.ratios,
        last=Last(0.9, 0.45, 1e9),
        shortfall_ref_s=(1.0, 1.0, 0.0, 1.0, 0.0),
    )
    vcpus = [booked(index, account=account) for index in range(4)]
    found = reports.cycle(*[instance(*vcpus, name=f"instance-{n}") for n in range(100)])
    lines = Scrape(found, detail="instance").text.splitlines()

    assert 1000 < sum(not line.startswith("#") for line in lines) <= 1500


def test_the_sums_of_a_host_never_fall():
    """Neither when an instance leaves, nor while one of its vCPUs cannot be read."""

    def cpu_s(scrape):
        return sum(value for _, value in scrape.samples("amp_host_cpu_seconds_total"))

    leaves, stays = instance(booked(), name="leaves"), instance(booked(), booked(1), name="stays")
    unread = instance(booked(), name="stays", problem="vCPU 1 has no CPU cgroup of its own")
    scrape = Scrape(reports.cycle(leaves, stays))
    assert cpu_s(scrape) == 30.0

    for found in (reports.cycle(unread), reports.cycle(stays)):
        scrape.exporter.update(found)
        assert cpu_s(scrape) == 30.0
    scrape.exporter.update(reports.cycle(unread))
    assert scrape.samples("amp_instance_cpu_seconds_total") == []


def test_estimates_are_exported():
    """Score, speedup with source and error, and drift by core type."""
    profile = VcpuProfile(1.6, 0.8, SpeedupEstimate(1.12, 0.03, "misses"))
    vcpu = booked()
    vcpu = replace(vcpu, profile=profile)
    counted = [TypeProfile(Smoothed(rate), rate, Mean(rate), 1.0) for rate in (1e9, 1.94e9)]
    counters = {(INSTANCE["resource"], 0): CounterProfile(tuple(counted), 1, 1.0)}
    scrape = Scrape(reports.cycle(instance(vcpu), counters=counters))

    assert scrape.value("amp_vcpu_efficiency_ratio", **VCPU) == 0.8
    assert scrape.value("amp_vcpu_speedup_ratio", source="misses", **VCPU) == 1.12
    assert scrape.value("amp_vcpu_speedup_error_ratio", source="misses", **VCPU) == 0.03
    assert scrape.value("amp_coefficient_drift_ratio", core_type="fast") == pytest.approx(0.97)


def test_slowdown_and_unfairness_match_the_simulation():
    """The agent's estimates agree with the simulator; booked instances have no slowdown."""
    guests = [guest(f"gains-{speed}", speed=speed) for speed in (2.0, 1.2)]
    host = SimHost(topology(slow=2), [*guests, guest("third"), guest("booked", pref_core="0.1")])
    loop = Loop(host, host, policy=load_policy("amp-fair"), stopwatch=lambda: 0.0)
    for second in range(200):
        host.advance(float(second))
        found = loop.cycle()

    scrape = Scrape(found)

    got = {
        labels["domain"]: value for labels, value in scrape.samples("amp_instance_slowdown_ratio")
    }
    real = {name: host.outcome(name) for name in got}
    assert set(got) == {"gains-2.0", "gains-1.2", "third"}
    for name, ratio in got.items():
        assert ratio == pytest.approx(real[name].alone / real[name].speed, rel=0.03)
    most = max(got.values()) / min(got.values())
    assert scrape.value("amp_host_unfairness_ratio") == pytest.approx(most)


def test_causes_that_come_and_go_start_at_0():
    """The others with the first loss: whether they can be measured depends on the host."""
    name = "amp_host_shortfall_refcore_seconds_total"
    slow = reports.account(shortfall_ref_s=(0.0, 0.0, 0.0, 0.0, 0.5))

    def values(*vcpus):
        scrape = Scrape(reports.cycle(instance(*vcpus)))
        return {labels["cause"]: value for labels, value in scrape.samples(name)}

    assert values(booked()) == {"throttle": 0.0, "contention": 0.25}
    assert values(booked(account=slow)) == {"throttle": 0.0, "contention": 0.0, "smt": 0.5}


@pytest.mark.parametrize(
    ("specs", "flavor", "promised"),
    [({}, "SCS-2C-4-20s", ["dedicated-core"]), ({"scs:cpu-type": "shared"}, "SCS-2V-4", [])],
)
def test_the_cpu_type_of_scs_is_a_label(specs, flavor, promised):
    """Of its four words only, whatever the flavor says."""
    scrape = Scrape(reports.cycle(instance(booked(), specs=specs, flavor=flavor)))

    labels = [labels["cpu_type"] for labels, _ in scrape.samples("amp_instance_scs_vcpus")]
    assert labels == promised
