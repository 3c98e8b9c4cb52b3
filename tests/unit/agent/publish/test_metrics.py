"""The agent's metrics, as Prometheus reads them."""

import socket
import threading
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest, parser
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from amp_nova.accounting.delivery import RATIO_BUCKETS
from amp_nova.agent.publish.metrics import Exporter
from amp_nova.exceptions import ConfigInvalid
from amp_nova.model.observation import Counts
from tests import reports
from tests.reports import best_effort, booked, instance, ips

NAME = "instance-00000001"
INSTANCE = {"domain": NAME, "resource": f"uuid-of-{NAME}", "project": "5ac0ffee"}
VCPU = {**INSTANCE, "vcpu": "0"}
RATIOS = (0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 1)


class Scrape:
    """What one exporter says, read back."""

    def __init__(self, *found, **options):
        self.exporter = Exporter(CollectorRegistry(), clock=lambda: 1000.0, **options)
        for report in found:
            self.exporter.update(report)

    @property
    def text(self):
        """As it is served."""
        return generate_latest(self.exporter.registry).decode()

    @property
    def families(self):
        """By name, our own."""
        found = parser.text_string_to_metric_families(self.text)
        return {f.name: f for f in found if f.name.startswith("amp_")}

    def value(self, name, /, **labels):
        """One sample's value, ``None`` when there is none."""
        return self.exporter.registry.get_sample_value(name, labels)

    def samples(self, name):
        """All samples of a name, as pairs of labels and value."""
        found = (s for f in self.families.values() for s in f.samples)
        return [(s.labels, s.value) for s in found if s.name == name]


@pytest.fixture
def full():
    """Everything there can be to say."""
    scrape = Scrape(
        reports.report(
            instance(booked(), ratios=RATIOS, problem="vCPU 1 has no CPU cgroup of its own"),
            instance(ips(note="unverifiable: no counter"), name="instance-00000002"),
            instance(best_effort(), name="instance-00000003"),
            migrations={("slow", "fast"): 3},
            drift={"quota": 2},
            failures={"read_only": 4},
            plans_rejected=5,
            writes=6,
        ),
        calibrated_s=900.0,
    )
    scrape.exporter.hypervisor_up = True
    scrape.exporter.lateness_s = 0.002
    return scrape


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("amp_vcpu_booked_refcores", VCPU, 0.5),
        ("amp_vcpu_delivered_refcores", VCPU, 0.4875),
        ("amp_vcpu_delivered_ratio", VCPU, 0.975),
        ("amp_vcpu_shortfall_refcore_seconds_total", {**VCPU, "cause": "contention"}, 0.25),
        ("amp_vcpu_shortfall_refcore_seconds_total", {**VCPU, "cause": "throttle"}, 0.0),
        ("amp_vcpu_cpu_seconds_total", {**VCPU, "core_type": "slow"}, 7.5),
        ("amp_vcpu_cpu_seconds_total", {**VCPU, "core_type": "fast"}, 2.5),
        ("amp_vcpu_reference_cpu_seconds_total", VCPU, 12.5),
        ("amp_vcpu_quota_cores", VCPU, 0.25),
        (
            "amp_instance_info",
            {**INSTANCE, "name": f"my {NAME}", "flavor": "m1.half"},
            1.0,
        ),
        (
            "amp_instance_problem_info",
            {**INSTANCE, "problem": "vCPU 1 has no CPU cgroup of its own"},
            1.0,
        ),
        ("amp_core_type_coefficient_ratio", {"core_type": "fast", "source": "calibration"}, 2.0),
        ("amp_core_type_pcpus", {"core_type": "slow"}, 2.0),
        ("amp_migrations_total", {"from": "slow", "to": "fast"}, 3.0),
        ("amp_enforcement_drift_total", {"cause": "quota"}, 2.0),
        ("amp_enforcement_drift_total", {"cause": "affinity"}, 0.0),
        ("amp_actuation_failures_total", {"reason": "read_only"}, 4.0),
        ("amp_actuation_failures_total", {"reason": "refused"}, 0.0),
        ("amp_plans_rejected_total", {}, 5.0),
        ("amp_writes_total", {}, 6.0),
        ("amp_calibration_age_seconds", {}, 100.0),
        ("amp_cycle_duration_seconds_sum", {"stage": "observe"}, 0.001),
        ("amp_cycle_duration_seconds_count", {"stage": "apply"}, 1.0),
        ("amp_cycle_last_success_timestamp_seconds", {}, 1000.0),
        ("amp_cycle_lateness_seconds", {}, 0.002),
        ("amp_hypervisor_up", {}, 1.0),
    ],
)
def test_metric_is_what_the_contract_names(full, name, labels, value):
    """Name, labels and value of every metric."""
    assert full.value(name, **labels) == value


def test_ips_booking_is_told_with_why_it_is_not_enforced(full):
    """An instance that books instructions has its booking, and no reference cores."""
    labels = {
        "domain": "instance-00000002",
        "resource": "uuid-of-instance-00000002",
        "project": "5ac0ffee",
        "vcpu": "0",
    }

    assert full.value("amp_vcpu_booked_ips", **labels) == 2.5e9
    assert full.value("amp_vcpu_booked_refcores", **labels) is None
    assert full.value("amp_vcpu_unenforced_info", **labels, why="unverifiable: no counter") == 1


def test_build_is_named(full):
    """The version that runs."""
    ((labels, value),) = full.samples("amp_build_info")

    assert (set(labels), value) == ({"version"}, 1.0)


def test_names_follow_the_conventions(full):
    """Prefix, counters end in _total, ratios in _ratio, infos in _info and are 1, no percent."""
    for family in full.families.values():
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total"), sample.name
            assert "percent" not in sample.name
            if sample.name.endswith("_info"):
                assert sample.value == 1
            if sample.name.endswith("_ratio") and "coefficient" not in sample.name:
                assert 0 <= sample.value <= 1.5, sample.name


def test_series_of_an_instance_name_it_the_same_way(full):
    """Every series of an instance or vCPU can be joined with every other one."""
    for family in full.families.values():
        for sample in family.samples:
            if sample.name.startswith(("amp_vcpu", "amp_instance")):
                assert set(INSTANCE) <= set(sample.labels), sample.name
                assert sample.name.startswith("amp_instance") or "vcpu" in sample.labels
            assert "pcpu" not in sample.labels


def test_what_is_not_known_has_no_sample(full):
    """A vCPU that books nothing and was not accounted yet has no series of its own."""
    for family in full.families.values():
        for sample in family.samples:
            if sample.labels.get("domain") == "instance-00000003":
                assert sample.name == "amp_instance_info"


def test_nothing_is_said_of_the_host_before_the_first_cycle():
    """An agent that has seen nothing tells its version alone."""
    with_samples = {f.name for f in Scrape().families.values() if f.samples}

    assert with_samples == {"amp_build_info"}


def test_series_end_with_their_instance(full):
    """An instance that has gone leaves nothing behind."""
    full.exporter.update(reports.report(instance(booked(), name="instance-00000009")))

    domains = {s.labels.get("domain") for f in full.families.values() for s in f.samples}

    assert domains - {None} == {"instance-00000009"}


def test_histogram_of_ratios_is_cumulative(full):
    """Buckets count everything up to their bound; the last one, +Inf, counts everything."""
    buckets = full.samples("amp_instance_delivered_ratio_bucket")

    assert [labels["le"] for labels, _ in buckets] == [*map(str, RATIO_BUCKETS), "+Inf"]
    assert [value for _, value in buckets] == [0, 0, 1, 1, 3, 3, 3, 3, 3, 3, 3, 4]
    assert full.value("amp_instance_delivered_ratio_count", **INSTANCE) == 4
    assert full.value("amp_instance_delivered_ratio_sum", **INSTANCE) == 4.0


def test_durations_add_up_over_cycles():
    """A stage's time and number of runs are sums over all cycles."""
    scrape = Scrape(reports.report(), reports.report(), reports.report())

    assert scrape.value("amp_cycle_duration_seconds_count", stage="observe") == 3
    assert scrape.value("amp_cycle_duration_seconds_sum", stage="observe") == pytest.approx(0.003)


@pytest.mark.parametrize("text", ['a "quoted" \\ name', "two\nlines", "ünïcode", ""])
def test_odd_names_survive(text):
    """What Nova's users call their instances comes through whole, in both formats."""
    scrape = Scrape(reports.report(instance(booked(), display_name=text, problem=text or None)))

    ((labels, _),) = scrape.samples("amp_instance_info")
    served = openmetrics.generate_latest(scrape.exporter.registry).decode()
    families = {f.name: f for f in text_string_to_metric_families(served)}

    assert labels["name"] == text
    assert families["amp_instance"].samples[0].labels["name"] == text


def test_scrape_during_an_update_is_whole(full):
    """Cycles go on while somebody reads."""
    stop = threading.Event()
    errors = []

    def read():
        while not stop.is_set():
            try:
                full.families  # noqa: B018  # reading is the test
            except Exception as exc:  # noqa: BLE001  # whatever it is, it fails the test
                errors.append(exc)
                return

    thread = threading.Thread(target=read)
    thread.start()
    for i in range(300):
        found = reports.report(instance(booked(), name=f"instance-{i}"))
        found.stage_s[f"stage {i}"] = 0.1
        full.exporter.update(found)
    stop.set()
    thread.join()

    assert errors == []


def test_metrics_are_served(full):
    """Over HTTP, on a free port when asked for one."""
    address, port = full.exporter.start_http("127.0.0.1", 0)

    with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()

    assert f'amp_vcpu_delivered_ratio{{domain="{NAME}"' in text
    assert "process_resident_memory_bytes" in text


def test_port_in_use_is_one_sentence():
    """The address, the reason and the remedy."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(ConfigInvalid) as caught:
            Scrape().exporter.start_http("127.0.0.1", port)

    assert str(caught.value) == (
        f"metrics cannot be served on 127.0.0.1:{port} (Address already in use): set another "
        "[exporter] address or port"
    )


def test_address_that_is_not_here_is_one_sentence():
    """An address of another machine, or one that cannot be resolved, is refused."""
    for address in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(ConfigInvalid, match=f"metrics cannot be served on {address}:0"):
            Scrape().exporter.start_http(address, 0)


def test_instructions_are_told_where_they_are_counted():
    """A vCPU that nothing counts has no series, not a zero."""
    counted = replace(reports.reading(), counts=Counts(12345))
    scrape = Scrape(
        reports.report(instance(booked(reading=counted)), instance(ips(), name="instance-2"))
    )

    assert scrape.samples("amp_vcpu_instructions_total") == [(VCPU, 12345.0)]


def test_sources_of_counts_are_told_with_what_there_is_to_say():
    """One series for each, whatever they count."""
    scrape = Scrape(reports.report())
    assert scrape.samples("amp_counters_info") == []
    scrape.exporter.counters = {("tcg", ""): 3, ("none", "no PMU"): 1}

    assert scrape.samples("amp_counters_info") == [
        ({"source": "tcg", "about": ""}, 1.0),
        ({"source": "none", "about": "no PMU"}, 1.0),
    ]
