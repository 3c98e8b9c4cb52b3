# SPDX-License-Identifier: Apache-2.0
"""The commands of ``openstack`` in the documentation, as they are shown."""

import contextlib
import json
import shlex

import pytest

from tests.support import documented
from tools.cloud.client import openstack
from tools.cloud.layout import FAST

NAME = "documented"
NOT_HERE = (
    "openstack rating ",
    "openstack optimize ",
    "openstack --os-cloud system ",
    "openstack amp flavor scs",
    "openstack service create ",
    "openstack endpoint create ",
)
"""CloudKitty, Watcher and an administrator of the whole system are not in this cloud; the last
three have tests of their own."""
HERE = {
    "--network NETWORK": "--nic none",
    "--ram 512 --disk 5": "--ram 16 --disk 0",
    "--ram 1024 --disk 10": "--ram 16 --disk 0",
    "HOST_amp_fast": f"{FAST.name}_amp_{FAST.name}",
    "IMAGE": "counting",
    "FLAVOR": NAME,
    "AGGREGATE": NAME,
    " half": f" {NAME}",
    " metered": f" {NAME}-ips",
}
"""What stands for what in this cloud; its own flavor ``half`` stays as it is."""


def commands():
    """Every command once, without remarks."""
    found = (c for block in documented.blocks() for c in block.commands)
    ours = (c for c in found if c.startswith("openstack ") and not c.startswith(NOT_HERE))
    return sorted({shlex.join(shlex.split(c, comments=True)) for c in ours})


def forget(kind, *names):
    """Delete what there is of these."""
    for name in names:
        with contextlib.suppress(RuntimeError):
            openstack(kind, "delete", name)


@pytest.fixture
def tenants(cloud):
    """What the commands expect to be there, and nothing that they make."""
    openstack("aggregate", "create", NAME)
    cloud.flavor(f"{NAME}-ips")
    yield
    for server in ("first", "one"):
        forget("server", server)
    forget("aggregate", NAME)
    forget("flavor", NAME, f"{NAME}-ips")


@pytest.mark.parametrize("command", commands())
def test_a_documented_command_works(cloud, tenants, command):
    """Exit status 0, with this cloud's names for those in capital letters."""
    for word, here in HERE.items():
        command = command.replace(word, here)
    if " flavor create " not in command:
        cloud.flavor(NAME)
    if "UUID" in command:
        listed = openstack(
            "resource", "provider", "list", "--name", HERE["HOST_amp_fast"], "-f", "json"
        )
        command = command.replace("UUID", json.loads(listed)[0]["uuid"])

    openstack(*shlex.split(command)[1:])
