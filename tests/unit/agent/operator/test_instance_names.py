# SPDX-License-Identifier: Apache-2.0
"""Instances by the names an operator knows them by."""

import pytest

from amp_nova.agent.operator.instance_names import resolve
from amp_nova.exceptions import AmpError

GONE = "71a28349-0d3e-4a6f-8a3c-2f4f3a9f6a10"
HERE = {
    "uuid-1": ("instance-1", "web"),
    "uuid-2": ("instance-2", "instance-1"),
    "uuid-3": ("instance-3", "web"),
    "uuid-4": ("uuid-1", "db"),
    "uuid-5": ("instance-5", ""),
    "uuid-6": ("instance-6", "instance-0000002a"),
    "uuid-7": ("instance-7", GONE),
    "uuid-8": ("instance-0000002b", "instance-0000002b"),
}


@pytest.mark.parametrize(
    ("name", "uuid"),
    [
        ("uuid-1", "uuid-1"),
        ("instance-1", "uuid-1"),
        ("db", "uuid-4"),
        ("instance-2", "uuid-2"),
        ("instance-0000002b", "uuid-8"),
    ],
)
def test_uuid_precedes_libvirt_name_precedes_nova_name(name, uuid):
    """Users choose Nova names as they like."""
    assert resolve(name, HERE) == uuid


@pytest.mark.parametrize("name", ["web", "nobody", "", "instance-0000002a", GONE])
def test_ambiguous_or_unknown_name_is_an_error(name):
    """A tenant may call an instance like one that has just left this host: that names nothing."""
    with pytest.raises(AmpError, match=rf"several instances here are named|no instance '{name}'"):
        resolve(name, HERE)
