# SPDX-License-Identifier: Apache-2.0
"""The DevStack plugin's verbs; fakes of DevStack's functions print their arguments.

``tools/devstack`` runs it in a real DevStack.
"""

import subprocess
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "devstack"
FAKES = r"""
DEST=$PWD HOST_IP=10.0.0.1 SERVICE_HOST=10.0.0.1 SERVICE_PASSWORD=secret REGION_NAME=RegionOne
SERVICE_PROJECT_NAME=service SERVICE_DOMAIN_NAME=Default SERVICE_LISTEN_ADDRESS=0.0.0.0
KEYSTONE_SERVICE_URI=http://10.0.0.1/identity DATA_DIR=$PWD/data SYSTEMD_DIR=$PWD/systemd
NOVA_CONF=nova.conf NOVA_CPU_CONF=nova-cpu.conf STACK_USER=stack GLOBAL_VENV=True
TEMPEST_CONFIG=tempest.conf DEVSTACK_VENV=/venv NOVA_FILTERS=ComputeFilter
AMP_NOVA_CONF_DIR=$PWD/etc AMP_NOVA_STATE_DIR=$PWD/state AMP_NOVA_GRAFANA_DIR=$PWD/grafana
is_service_enabled() { [[ ,$ENABLED_SERVICES, == *,$1,* ]]; }
enable_service() { ENABLED_SERVICES+=,$1; }
trueorfalse() { echo "${!2:-$1}"; }
iniget() { sed -n "s/^$3 = //p" has.conf; }
iniget_multiline() { echo $(iniget "$@"); }
get_transport_url() { echo rabbit://10.0.0.1/; }
hostname() { echo compute1; }
sudo() {
    case $1 in install) mkdir -p "${@: -1}" ;; tee) cat >"$2" ;; *) echo "sudo $*" ;; esac
}
for name in define_plugin echo_summary setup_develop install_package iniset iniadd \
    iniadd_literal configure_keystone_authtoken_middleware create_service_user \
    get_or_create_service get_or_create_endpoint run_process stop_process; do
    eval "$name() { echo \"$name \$*\"; }"
done
"""
ALL = "n-sch,n-cpu,key,amp-prometheus"


@pytest.fixture
def plugin(tmp_path):
    """Runs a phase of the plugin; what it called. ``has``: lines of ``nova.conf`` before that."""

    def run(*phase, services=ALL, has="", **settings):
        (tmp_path / "has.conf").write_text(has)
        (tmp_path / "systemd").mkdir(exist_ok=True)
        variables = "\n".join(f"{k}={v!r}" for k, v in settings.items())
        sourced = f"source {PLUGIN}/settings\nsource {PLUGIN}/plugin.sh {' '.join(phase)}"
        assigned = f"ENABLED_SERVICES={services}\nAMP_NOVA_DIR={PLUGIN.parent}\n{variables}"
        script = f"{FAKES}\n{assigned}\n{sourced}"
        command = ["bash", "-e", "-c", script]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.replace(str(tmp_path), "DIR").splitlines()

    return run


def lists(called):
    """What the plugin wrote into Nova's lists, by option, and its additions to the others."""
    words = [c.split(" ", 4) for c in called if c.startswith(("iniset nova.conf", "iniadd nova."))]
    written = {each[3]: each[4] for each in words if each[0] == "iniset"}
    return written, [each[4] for each in words if each[0] == "iniadd"]


OURS = "amp_nova.nova_plugins.filters.AmpCapacityFilter"
WEIGHERS = ",".join(
    f"amp_nova.nova_plugins.weights.Amp{kind}Weigher" for kind in ("Efficiency", "Scalability")
)
TARGET = "amp@http://127.0.0.1:9179/v1/vendordata"


def test_the_scheduler_gets_our_plugins_beside_its_own(plugin):
    """As the scheduling guide says; what DevStack leaves out is Nova's default."""
    written, added = lists(plugin("stack", "post-config", services=f"{ALL},amp-vendordata"))

    assert added == ["nova.scheduler.filters.all_filters", OURS]
    assert written["enabled_filters"] == "ComputeFilter,AmpCapacityFilter"
    assert written["weight_classes"] == f"nova.scheduler.weights.all_weighers,{WEIGHERS}"
    assert written["vendordata_providers"] == "StaticJSON,DynamicJSON"
    assert written["vendordata_dynamic_targets"] == TARGET


@pytest.mark.parametrize(
    ("has", "added", "written"),
    [
        (
            ["theirs.filters.Filter", "ComputeFilter, Filter", "theirs.weights.Weigher"],
            [OURS],
            ["ComputeFilter,Filter,AmpCapacityFilter", f"theirs.weights.Weigher,{WEIGHERS}"],
        ),
        (
            [OURS, "AmpCapacityFilter,ComputeFilter", f"{WEIGHERS},theirs.weights.Weigher"],
            [],
            ["AmpCapacityFilter,ComputeFilter", f"{WEIGHERS},theirs.weights.Weigher"],
        ),
    ],
    ids=["others'", "ours already"],
)
def test_values_that_are_there_stay_in_their_places(plugin, has, added, written):
    """Whichever plugin comes first; ours are added once."""
    available, enabled, weighers = has
    text = f"available_filters = nova.scheduler.filters.all_filters {available}\n"
    text += f"enabled_filters = {enabled}\nweight_classes = {weighers}\n"
    found, more = lists(plugin("stack", "post-config", has=text))

    assert more == added
    assert [found["enabled_filters"], found["weight_classes"]] == written


def test_the_agent_gets_core_types_bus_and_credentials(plugin):
    """Core types are lists separated by semicolons."""
    called = plugin("stack", "post-config", AMP_NOVA_CORE_TYPES="fast 0-7 1.85; slow 8-15 1.0")

    conf = "DIR/etc/amp-nova.conf"
    assert f"iniadd_literal {conf} topology core_type fast 0-7 1.85" in called
    assert f"iniadd_literal {conf} topology core_type slow 8-15 1.0" in called
    # iniadd_literal adds nothing where there is no such section yet.
    topology = [c for c in called if f"{conf} topology" in c]
    assert topology[0].startswith("iniset ")
    assert f"iniset {conf} reports transport_url rabbit://10.0.0.1/" in called
    assert f"iniset {conf} placement enabled True" in called
    assert f"iniset {conf} placement password secret" in called
    assert "create_service_user amp-nova admin" in called


def test_agent_and_guard_run_as_on_other_hosts(plugin, tmp_path):
    """By the units that are shipped, and with the default detail of metrics."""
    configured, started = plugin("stack", "post-config"), plugin("stack", "extra")

    commands = {
        "amp-nova-agent": f"amp-nova-agent --config-file {tmp_path}/etc/amp-nova.conf",
        "amp-nova-guard": "amp-nova-guard --stay --state-path /run/amp-nova",
    }
    for name, command in commands.items():
        shipped = (PLUGIN.parent / f"etc/amp-nova/{name}.service").read_text().splitlines()
        installed = (tmp_path / f"systemd/{name}.service").read_text().splitlines()
        changed = [line for line in installed if line not in shipped]
        assert changed == [f"ExecStart=/venv/bin/{command}"]
        assert len(installed) == len(shipped)
    assert "sudo systemctl enable --now amp-nova-guard amp-nova-agent" in started
    assert not any("exporter detail" in c for c in configured)


def test_a_compute_only_host_has_an_agent_and_no_scheduler(plugin):
    """Nothing is created in Keystone from there."""
    called = plugin("stack", "post-config", services="n-cpu")
    started = plugin("stack", "extra", services="n-cpu")

    assert any("reports transport_url" in c for c in called)
    assert not any(" nova.conf" in c or "create" in c for c in called)
    assert "sudo systemctl enable --now amp-nova-guard amp-nova-agent" in started
    assert not any(c.startswith("run_process") for c in started)


def test_a_controller_without_computes_has_no_agent(plugin):
    """Nor what only an agent needs."""
    installed = plugin("stack", "install", services="n-sch,key")
    assert f"setup_develop {PLUGIN.parent} osc" in installed
    assert plugin("stack", "extra", services="n-sch,key")[1:] == ["echo_summary Starting amp-nova"]


def test_prometheus_scrapes_every_agent_by_its_host(plugin, tmp_path):
    """``openstack amp`` joins by the label ``host``."""
    plugin("stack", "post-config", AMP_NOVA_SCRAPE="10.0.0.1:9178,192.0.2.7:9178")

    text = (tmp_path / "etc/prometheus.yml").read_text()
    assert "targets: ['10.0.0.1:9178']\n        labels: {host: 'compute1'}" in text
    assert "targets: ['192.0.2.7:9178']" in text


def test_tempest_knows_prometheus_and_whether_flavors_claim(plugin):
    """The plugin of Tempest finds both in its section."""
    called = plugin("stack", "test-config", services=f"{ALL},tempest", AMP_NOVA_CLAIMS="False")

    section = "iniset tempest.conf amp_nova"
    assert f"{section} prometheus_url http://10.0.0.1:9090" in called
    assert f"{section} claims False" in called


def test_the_service_for_tenants_is_optional(plugin):
    """It validates tokens as its own user; Nova asks it as the user nova."""
    services = f"{ALL},amp-vendordata"
    called = plugin("stack", "post-config", services=services)

    conf = "DIR/etc/vendordata.conf"
    assert f"configure_keystone_authtoken_middleware {conf} amp-nova" in called
    assert f"iniset {conf} vendordata prometheus_url http://10.0.0.1:9090" in called
    assert "iniset nova.conf vendordata_dynamic_auth username nova" in called
    assert "iniset nova.conf vendordata_dynamic_auth password secret" in called
    assert (
        f"run_process amp-vendordata /venv/bin/amp-nova-vendordata --config-file {conf}"
    ) in plugin("stack", "extra", services=services)
    installed = plugin("stack", "install", services=services)
    assert f"setup_develop {PLUGIN.parent} agent,osc,vendordata" in installed
    assert not any("vendordata" in c for c in plugin("stack", "post-config"))


def test_unstack_stops_and_clean_removes(plugin):
    """What was started; what was written."""
    assert plugin("unstack")[-3:] == [
        "stop_process amp-vendordata",
        "stop_process amp-prometheus",
        "sudo systemctl disable --now amp-nova-agent amp-nova-guard",
    ]
    removed = [c for c in plugin("clean") if c.startswith("sudo rm")]
    assert any("DIR/etc" in c and "DIR/state" in c for c in removed)
    for name in ("amp-nova-agent", "amp-nova-guard"):
        assert any(f"DIR/systemd/{name}.service" in c for c in removed)


def test_other_phases_do_nothing(plugin):
    """DevStack calls the plugin in every phase."""
    assert plugin("stack", "pre-install") == ["define_plugin amp-nova"]
    assert plugin("stack", "test-config") == ["define_plugin amp-nova"]
