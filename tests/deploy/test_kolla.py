"""What the playbook for kolla-ansible writes on the deployment host."""

import json
import sys

import pytest
import yaml

from tests.deploy.conftest import ROOT, ansible

OPERATORS = "[filter_scheduler]\ntrack_instance_changes = false\n"


@pytest.fixture
def config(tmp_path):
    """kolla-ansible's directory for an operator's additions, with one."""
    (tmp_path / "config/nova").mkdir(parents=True)
    (tmp_path / "config/nova/nova-scheduler.conf").write_text(OPERATORS)
    return tmp_path / "config"


def play(config, *options, **variables):
    """Run the part for the deployment host; the output."""
    compute = {"c1": {"ansible_host": "192.0.2.11"}}
    deployment = {"localhost": {"ansible_python_interpreter": sys.executable}}
    groups = {"compute": {"hosts": compute}, "deployment": {"hosts": deployment}}
    inventory = {"all": {"children": groups}}
    (config.parent / "inventory.yaml").write_text(yaml.safe_dump(inventory))
    url = "rabbit://amp:secret@192.0.2.1:5672/amp"
    more = {"node_custom_config": str(config), "amp_nova_transport_url": url} | variables
    return ansible(
        "-i", config.parent / "inventory.yaml", "--limit", "localhost", "-e", json.dumps(more),
        *options, ROOT / "deploy/kolla-ansible/amp-nova.yml",
    )  # fmt: skip


def files(folder):
    """The text of every file, by its path."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in found}


def test_what_kolla_ansible_merges_is_added_to_what_is_there_and_removed_again(config):
    """The options for the scheduler, rules, a scrape job and dashboards."""
    before = files(config)
    play(config, "--check")
    assert files(config) == before

    play(config)
    assert "changed=0" in play(config)
    found = files(config)
    etc = ROOT / "etc/amp-nova"

    scheduler = found.pop("nova/nova-scheduler.conf")
    assert scheduler.startswith(OPERATORS)
    assert "transport_url = rabbit://amp:secret@192.0.2.1:5672/amp" in scheduler
    assert 'auth_unix_ro = "none"' in found.pop("nova/libvirtd.conf.j2")
    scrape = yaml.safe_load(found.pop("prometheus/prometheus.yml.d/amp-nova.yml"))
    targets = [{"targets": ["192.0.2.11:9178"], "labels": {"host": "c1"}}]
    assert scrape["scrape_configs"][0]["static_configs"] == targets
    assert found == {
        "prometheus/amp-nova-rules.rules": (etc / "prometheus/rules.yaml").read_text(),
        "prometheus/amp-nova-alerts.rules": (etc / "prometheus/alerts.yaml").read_text(),
        **{f"grafana/dashboards/{p.name}": p.read_text() for p in etc.glob("grafana/*.json")},
    }

    play(config, amp_nova_state="absent")
    assert files(config) == before


def test_an_operators_own_libvirtd_conf_is_kept(config):
    """On installation and on removal."""
    (config / "nova/libvirtd.conf.j2").write_text("log_level = 1\n")

    play(config)
    play(config, amp_nova_state="absent")

    assert (config / "nova/libvirtd.conf.j2").read_text() == "log_level = 1\n"


def test_agents_without_a_message_bus_are_refused(config):
    """Schedulers would place no booking, and nothing else would say so."""
    with pytest.raises(AssertionError, match="Without amp_nova_transport_url agents send no rep"):
        play(
            config, "--limit", "c1", ansible_connection="local", ansible_become=False,
            ansible_python_interpreter=sys.executable, amp_nova_transport_url="",
        )  # fmt: skip
