# SPDX-License-Identifier: Apache-2.0
"""Recording rules, alerts, their cases and their runbooks."""

import re
import subprocess
from functools import partial

import pytest
import yaml
from prometheus_client import generate_latest

from amp_nova.agent.publish.exporter import Exporter
from amp_nova.agent.publish.host_info import HostInfo
from amp_nova_lab.two_hosts import Show
from tests.support.monitoring import PROMETHEUS, ROOT, program, rules, unknown

RUNBOOKS = ROOT / "doc/source/admin/runbooks"
ALERTS = {rule["alert"]: rule for rule in rules("alerts.yaml")}
CASES = [
    (found[1], check["exp_samples"][0]["value"])
    for path in sorted(PROMETHEUS.glob("tests*.yaml"))
    for case in yaml.safe_load(path.read_text())["tests"]
    for check in case["promql_expr_test"]
    if (found := re.search('alertname="([^"]+)"', check["expr"]))
]
ALERTMANAGER = PROMETHEUS / "alertmanager.yaml"


def run(name, *arguments, **more):
    return subprocess.run(
        [program(name), *arguments], capture_output=True, text=True, check=False, **more
    )


promtool = partial(run, "promtool")


def slug(alert):
    return re.sub("(?<!^)(?=[A-Z])", "-", alert).lower()


@pytest.mark.parametrize("name", ["rules.yaml", "alerts.yaml"])
def test_rules_are_valid(name):
    """promtool accepts the file and complains about nothing."""
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(PROMETHEUS / name))

    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should_and_only_then(tmp_path):
    """Every case of every file, although every other target has more labels."""
    more = r', host="\1", rack="rack-of-\1", region="north"'
    for path in PROMETHEUS.glob("*.yaml"):
        text = re.sub(r'instance="(c\d*[13579]):9178"', rf"\g<0>{more}", path.read_text())
        (tmp_path / path.name).write_text(text)
    files = sorted(path.name for path in tmp_path.glob("tests*.yaml"))
    done = promtool("test", "rules", *files, cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_cases_in_which_it_fires_and_cases_in_which_it_must_not():
    """And every case is about an alert: after a renaming it would pass without a meaning."""
    kinds = {(name, bool(value)) for name, value in CASES}

    assert kinds == {(alert, fires) for alert in ALERTS for fires in (True, False)}


def test_the_example_for_alertmanager_is_valid():
    """Its syntax, and the alerts that it names."""
    done = run("amtool", "check-config", str(ALERTMANAGER))

    assert done.returncode == 0, done.stdout + done.stderr
    assert set(re.findall(r"Amp\w+", ALERTMANAGER.read_text())) <= set(ALERTS)


@pytest.mark.parametrize(
    ("severity", "receiver"), [("critical", "page"), ("warning", "ticket"), ("info", "ticket")]
)
def test_only_critical_alerts_page(severity, receiver):
    """By the routes of the example, which tell alerts apart by their severity alone."""
    labels = ["alertname=AmpAny", f"severity={severity}", "job=amp-nova"]
    done = run("amtool", "config", "routes", "test", f"--config.file={ALERTMANAGER}", *labels)

    assert done.stdout.strip() == receiver
    assert all(alert.startswith("Amp") for alert in ALERTS)


def test_one_host_pages_only_if_its_tenants_notice():
    """Everything else that pages is about many hosts."""
    critical = {name for name, rule in ALERTS.items() if rule["labels"]["severity"] == "critical"}

    assert critical == {"AmpServiceLevelBurnsFast", "AmpManyHostsUnattended"}


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_leads_to_its_runbook(alert):
    """A page of the documentation, in the list, that says what to check in order."""
    rule = ALERTS[alert]
    text = (RUNBOOKS / f"{slug(alert)}.rst").read_text()

    assert rule["annotations"]["runbook"] == f"admin/runbooks/{slug(alert)}"
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert text.startswith(f"{alert}\n")
    assert text.count("\n#. ") >= 3
    assert f"   {slug(alert)}\n" in (RUNBOOKS / "index.rst").read_text()


def test_every_runbook_has_its_alert():
    """A page does not outlive its alert."""
    assert {p.stem for p in RUNBOOKS.glob("*.rst")} == {*map(slug, ALERTS), "index"}


def tool(*words):
    """What ``tools/alerts`` answers."""
    command = [ROOT / "tools/alerts", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def without_link(rule):
    others = {k: v for k, v in rule["annotations"].items() if not k.startswith("runbook")}
    return {**rule, "annotations": others}


@pytest.mark.parametrize(
    ("words", "base"),
    [
        (("https://docs.example.com/amp-nova",), "https://docs.example.com/amp-nova"),
        (("http://10.0.0.11:8080/",), "http://10.0.0.11:8080"),
    ],
)
def test_links_lead_to_pages_of_the_operators_own_copy(words, base):
    """``tools/alerts`` changes their base address and nothing else; every page exists."""
    groups = yaml.safe_load(tool(*words).stdout)["groups"]
    made = [rule for group in groups for rule in group["rules"]]
    pages = [rule["annotations"]["runbook_url"].removeprefix(f"{base}/") for rule in made]

    assert [without_link(r) for r in made] == [without_link(r) for r in ALERTS.values()]
    assert [p for p in pages if not (ROOT / "doc/source" / p).with_suffix(".rst").is_file()] == []


@pytest.mark.parametrize("words", [[], ["docs.example.com"], ["https://a b"], ["https://a", "b"]])
def test_what_is_no_address_is_refused(words):
    """In a sentence; nothing is printed."""
    done = tool(*words)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"'{' '.join(words)}' is not an address" in done.stderr


@pytest.mark.parametrize(
    "rule",
    [*rules("rules.yaml"), *rules("alerts.yaml")],
    ids=lambda r: r.get("alert") or r["record"],
)
def test_rules_name_metrics_that_exist(rule):
    """In the table of the agent's metrics, or recorded by another rule."""
    assert unknown(rule["expr"]) == set()


def test_metrics_follow_prometheus_conventions():
    """``promtool check metrics`` has nothing to say about what an agent serves."""
    exporter, show = Exporter(detail="vcpu"), Show(1)
    exporter.admits = HostInfo("demo")
    while show.second():
        exporter.update(show.kept.cycles[-1])
    done = promtool("check", "metrics", input=generate_latest(exporter.registry).decode())

    assert (done.returncode, done.stdout + done.stderr) == (0, "")
