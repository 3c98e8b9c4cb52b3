# SPDX-License-Identifier: Apache-2.0
"""The role with a wheel in virtual environments."""

from tests.deploy.conftest import HOSTS, VERSIONS, until


def wheel(cloud, version):
    """The variables that install the wheel of this version."""
    (found,) = (cloud.share / version).glob("*.whl")
    methods = {"amp_nova_method": "venv", "amp_nova_nova_venv": "/opt/nova"}
    # Debian has everything that it requires.
    return methods | {"amp_nova_files": [str(found)], "amp_nova_pip_args": "--no-deps --no-index"}


def test_a_wheel_is_installed_upgraded_and_removed(cloud):
    """From nothing to a guest that is limited, and back."""
    node = cloud.nodes[HOSTS[0]]
    # Nova's wheel has files in etc.
    node.sh("python3 -m venv --system-site-packages /opt/nova; mkdir /opt/nova/etc")
    before = cloud.files()
    old, new = (wheel(cloud, version) for version in VERSIONS)

    cloud.play("--check", **old)
    assert cloud.files() ^ before == set()

    cloud.play(**old)
    assert not any(cloud.play(**old).values())
    assert cloud.scheduler("/opt/nova/bin/python") == ["AmpCapacityFilter", "2"]
    node.start_guest()
    assert until(node.booked, 60, "the limit")

    cloud.play(**new)
    assert cloud.each("amp-nova --version") == [f"amp-nova {VERSIONS[1]}"] * 2
    assert until(node.booked, 60, "the limit")

    cloud.play(**new, amp_nova_state="absent")
    assert node.quota_cores() is None
    assert cloud.files() ^ before == set()
