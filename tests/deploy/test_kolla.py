# SPDX-License-Identifier: Apache-2.0
"""What the playbook for kolla-ansible writes on the deployment host."""

import json
import re
import shlex
import sys

import pytest
import yaml

from tests.deploy.conftest import HOSTS, ROOT, VERSIONS, ansible, until
from tests.support.broker import PROGRAM, Broker
from tests.support.programs import run

CONTROL = PROGRAM.with_name("rabbitmqctl")
BUS = "rabbit://amp:se%2Fcret@192.0.2.1:5672,amp:se%2Fcret@192.0.2.2:5672/amp"
ELSEWHERE = {"ansible_host": "192.0.2.12", "api_interface": "br-api"}
FACTS = """
- hosts: localhost
  gather_facts: false
  tasks:
    - set_fact: {br_api: {ipv4: {address: 198.51.100.12}}, cacheable: true}
      delegate_to: c2
      delegate_facts: true
"""
"""A host whose APIs are in another network than Ansible, and what stands for its facts."""
SECURED = {
    "ansible_host": "2001:db8::13",
    "amp_nova_conf": {"exporter": {"address": "::", "port": 9443, "cert_file": "/etc/c.pem"}},
}
"""A host with a configuration of its own."""
CONTAINED = """
set -e
systemctl disable --now libvirtd.service libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket
rm -f /run/libvirt/libvirt-sock* /usr/share/polkit-1/actions/org.libvirt.*
mkdir /img
mount --bind /img /img
mkdir -p /img/usr /img/root /img/tmp /img/share /img/var/lib/libvirt /img/var/cache /img/var/log
for link in bin sbin lib lib64; do ln -s usr/$link /img/$link; done
cp -a /etc /img/etc
ln -s /run /img/var/run
for tree in usr proc sys dev run share; do
    mkdir -p /img/$tree
    mount --rbind /$tree /img/$tree
done
echo kolla:x:42436:42436::/:/bin/sh >>/img/etc/passwd
echo kolla:x:42436: >>/img/etc/group
chroot /img libvirtd --daemon
"""
"""libvirt with files of its own and the host's /run, /sys and /proc, as in kolla's container."""
OPERATORS = "[filter_scheduler]\ntrack_instance_changes = false\n"


@pytest.fixture
def config(tmp_path):
    """kolla-ansible's directory for an operator's additions, with one."""
    (tmp_path / "config/nova").mkdir(parents=True)
    (tmp_path / "config/nova/nova-scheduler.conf").write_text(OPERATORS)
    return tmp_path / "config"


def play(config, *options, bus=False, **variables):
    """Run the part for the deployment host; the output."""
    compute = {"c1": {"ansible_host": "192.0.2.11"}, "c2": ELSEWHERE, "c3": SECURED}
    deployment = {"localhost": {"ansible_python_interpreter": sys.executable}}
    groups = {"compute": {"hosts": compute}, "deployment": {"hosts": deployment}}
    groups |= {"rabbitmq": {"hosts": deployment}} if bus else {}
    inventory = {"all": {"children": groups}}
    (config.parent / "inventory.yaml").write_text(yaml.safe_dump(inventory))
    (config.parent / "facts.yaml").write_text(FACTS)
    more = {"node_custom_config": str(config), "amp_nova_transport_url": BUS} | variables
    return ansible(
        "-i", config.parent / "inventory.yaml", "--limit", "localhost", "-e", json.dumps(more),
        *options, config.parent / "facts.yaml", ROOT / "deploy/kolla-ansible/amp-nova.yml",
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

    linked = {"amp_nova_docs_url": "https://docs.example.com/amp-nova"}
    play(config, **linked)
    assert "changed=0" in play(config, **linked)
    found = files(config)
    etc = ROOT / "etc/amp-nova"
    alerts = run(ROOT / "tools/alerts", linked["amp_nova_docs_url"])

    scheduler = found.pop("nova/nova-scheduler.conf")
    assert scheduler.startswith(OPERATORS)
    assert f"transport_url = {BUS}" in scheduler
    assert "metrics_directory = /var/log/kolla/nova" in scheduler
    scrape = yaml.safe_load(found.pop("prometheus/prometheus.yml.d/amp-nova.yml"))
    assert scrape["scrape_configs"][0]["static_configs"] == [
        {"targets": ["192.0.2.11:9178"], "labels": {"host": "c1"}},
        {"targets": ["198.51.100.12:9178"], "labels": {"host": "c2"}},
        {"targets": ["[2001:db8::13]:9443"], "labels": {"host": "c3", "__scheme__": "https"}},
    ]
    assert found == {
        "prometheus/amp-nova-rules.rules": (etc / "prometheus/rules.yaml").read_text(),
        "prometheus/amp-nova-alerts.rules": alerts,
        **{f"grafana/dashboards/{p.name}": p.read_text() for p in etc.glob("grafana/*.json")},
    }

    play(config, amp_nova_state="absent")
    assert files(config) == before


def test_what_changes_is_shown_without_the_password_of_the_bus(config):
    """``--diff``, as operators run it before a change; also when it is removed again."""
    shown = [play(config, "--check", "--diff"), play(config, "--diff")]
    shown.append(play(config, "--diff", amp_nova_state="absent"))

    assert all("+++ after" in text for text in shown)
    assert not any("cret@" in text for text in shown)


@pytest.mark.parametrize(
    ("more", "filters"),
    [
        ({}, "ServerGroupAffinityFilter,AmpCapacityFilter"),
        ({"enable_blazar": "yes"}, "ServerGroupAffinityFilter,BlazarFilter,AmpCapacityFilter"),
        ({"amp_nova_enabled_filters": ["A", "AmpCapacityFilter"]}, "A,AmpCapacityFilter"),
    ],
)
def test_a_filter_that_kolla_ansible_enables_stays(config, more, filters):
    """Blazar's, which our lines would replace."""
    play(config, **more)
    text = (config / "nova/nova-scheduler.conf").read_text()
    (enabled,) = re.findall("^enabled_filters = (.*)$", text, re.M)
    assert enabled.endswith(filters)
    blazar = "available_filters = blazarnova.scheduler.filters.blazar_filter.BlazarFilter\n"
    assert (blazar in text) == ("enable_blazar" in more)


@pytest.mark.skipif(not PROGRAM.exists(), reason="rabbitmq-server is not installed")
def test_the_user_and_the_virtual_host_of_the_bus_are_made_once(config, tmp_path):
    """From the address alone, with its password; a second run changes nothing."""
    broker = Broker(tmp_path / "broker")
    command = tmp_path / "rabbitmqctl"
    lines = (f"export {k}={shlex.quote(v)}\n" for k, v in broker.environment.items())
    command.write_text("#!/bin/sh\n" + "".join(lines) + f'exec {CONTROL} "$@"\n')
    command.chmod(0o755)
    more = {"amp_nova_rabbitmqctl": [str(command)], "ansible_become": False}
    more["ansible_connection"] = "local"
    try:
        assert "se/cret" not in play(config, bus=True, **more)
        assert "changed=0" in play(config, bus=True, **more)
        broker.control("authenticate_user", "amp", "se/cret")
        assert run(command, "-q", "list_permissions", "--vhost", "amp").split()[-4:] == [
            "amp", ".*", ".*", ".*"
        ]  # fmt: skip
    finally:
        broker.stop()


def test_agents_without_a_message_bus_are_refused(config):
    """Schedulers would place no booking, and nothing else would say so."""
    with pytest.raises(AssertionError, match="Without amp_nova_transport_url agents send no rep"):
        play(
            config, "--limit", "c1", ansible_connection="local", ansible_become=False,
            ansible_python_interpreter=sys.executable, amp_nova_transport_url="",
        )  # fmt: skip


def test_an_agent_reads_from_a_libvirt_in_a_container(cloud):
    """The container has its own users, and the host's polkit does not know libvirt's action."""
    node = cloud.nodes[HOSTS[0]]
    node.sh(CONTAINED)
    before = node.files()
    reads = "runuser -u nobody -- virsh -r -c qemu:///system uri 2>&1 || true"
    assert "org.libvirt.unix.monitor is not registered" in node.sh(reads)
    stranger = reads.replace("runuser -u nobody --", "setpriv --reuid 4321 --clear-groups")
    assert "Failed to find user record for uid '4321'" in node.sh(stranger)
    more = {"amp_nova_conf": cloud.conf, "amp_nova_dropin": cloud.dropin}
    kolla = {"playbook": "kolla-ansible/amp-nova.yml", **more, **cloud.packages(VERSIONS[0])}

    cloud.play("--limit", HOSTS[0], **kolla)
    node.start_guest()
    assert until(node.booked, 60, "the limit")

    cloud.play("--limit", HOSTS[0], **kolla, amp_nova_state="absent")
    assert "org.libvirt.unix.monitor is not registered" in node.sh(reads)
    assert node.files() == before
