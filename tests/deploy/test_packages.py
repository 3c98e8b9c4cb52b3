# SPDX-License-Identifier: Apache-2.0
"""The role with Debian packages, from nothing to a guest that is limited, and back.

The tests run in this order.
"""

import json
import re

import pytest

from tests.deploy.conftest import GUEST, HOSTS, VERSIONS, until

before: set[tuple[str, str, str]] = set()


@pytest.fixture
def also(cloud):
    """An inventory that adds a host of the service for tenants."""
    path = cloud.folder / "also.yaml"
    path.write_text(f"vendordata: {{hosts: {{{HOSTS[0]}: }}}}\n")
    return path


def test_a_check_changes_nothing(cloud):
    """``--check`` on hosts that have nothing."""
    before.update(cloud.files())

    changed = cloud.play("--check", **cloud.packages(VERSIONS[0]))

    assert all(changed.values())
    assert cloud.files() ^ before == set()


def test_agents_run_on_every_compute_node(cloud):
    """One run, from nothing."""
    cloud.play(**cloud.packages(VERSIONS[0]))

    assert cloud.each("systemctl is-active amp-nova-agent amp-nova-guard") == ["active\nactive"] * 2
    assert (
        cloud.each("systemctl is-enabled amp-nova-agent amp-nova-guard") == ["enabled\nenabled"] * 2
    )


def test_a_second_run_changes_nothing(cloud):
    """Nor does a third, in check mode."""
    assert not any(cloud.play(**cloud.packages(VERSIONS[0])).values())
    assert not any(cloud.play("--check", **cloud.packages(VERSIONS[0])).values())


def test_one_host_of_a_cpu_model_is_measured_and_all_of_them_use_it(cloud):
    """The second node is like the first."""
    (found,) = json.loads(cloud.calibration.read_text())["calibrations"]
    topologies = [json.loads(t) for t in cloud.each("amp-nova topology --format json")]

    assert found["provenance"]["host"] == HOSTS[0]
    sources = {t["coefficient_source"] for each in topologies for t in each["core_types"]}
    assert sources == {"calibration"}
    assert topologies[0] == topologies[1]


def test_nova_loads_the_filter_and_the_weighers(cloud):
    """Nova's own code, with the configuration that nova-scheduler reads."""
    assert cloud.scheduler("python3") == ["AmpCapacityFilter", "2"]


def test_a_guest_that_books_is_limited(cloud):
    """By its booking over the coefficient of its core."""
    node = cloud.nodes[HOSTS[0]]
    node.start_guest()

    assert until(node.booked, 60, "the limit")
    assert GUEST in node.sh("amp-nova status")


def test_an_upgrade_keeps_the_limit(cloud):
    """The new version runs, and manages the same guest."""
    node = cloud.nodes[HOSTS[0]]

    changed = cloud.play(**cloud.packages(VERSIONS[1]))

    assert all(changed.values())
    assert cloud.each("amp-nova --version") == [f"amp-nova {VERSIONS[1]}"] * 2
    assert GUEST in node.sh("amp-nova status")
    assert until(node.booked, 60, "the limit")


def test_owners_find_a_service_for_their_figures(cloud, also, tmp_path):
    """It runs beside an agent; its user and endpoint are made in Keystone."""
    said = tmp_path / "said"
    keystone = tmp_path / "openstack"
    keystone.write_text(f'#!/bin/sh\necho "$@" >>{said}\n')
    keystone.chmod(0o755)
    sections = {
        "vendordata": {"prometheus_url": "http://127.0.0.1:9090"},
        "keystone_authtoken": {
            "auth_type": "password", "auth_url": "http://127.0.0.1:5000", "username": "amp-nova",
            "password": "its own", "project_name": "service",
        },
    }  # fmt: skip
    variables = {
        "amp_nova_conf": cloud.conf | sections,
        "amp_nova_vendordata_openstack": [str(keystone)],
        "amp_nova_vendordata_endpoint": "https://capacity.example.org",
    }

    cloud.play("-i", also, **cloud.packages(VERSIONS[1]), **variables)

    node = cloud.nodes[HOSTS[0]]
    ask = "curl --silent --output /dev/null --write-out '%{http_code}' http://127.0.0.1:9179"
    assert until(lambda: node.sh(f"{ask}/v1/servers/s || true") == "401", 60, "the service")
    made = [each for each in said.read_text().splitlines() if re.search("create|add", each)]
    assert made == [
        "user create --password its own amp-nova",
        "role add --user amp-nova --project service service",
        "service create --name amp-nova-vendordata amp-capacity",
        "endpoint create --region RegionOne amp-capacity public https://capacity.example.org",
    ]


def test_removal_leaves_nothing(cloud, also):
    """No file, user, unit, package or limit; the guest runs on."""
    cloud.play("-i", also, amp_nova_state="absent")

    assert cloud.nodes[HOSTS[0]].quota_cores() is None
    assert cloud.files() ^ before == set()
    assert not any(cloud.play(amp_nova_state="absent").values())
