"""Instances by the names an operator knows them by."""

import pytest

from amp_nova.agent.operator.instances import resolve
from amp_nova.exceptions import AmpError

HERE = {
    "uuid-1": ("instance-1", "web"),
    "uuid-2": ("instance-2", "instance-1"),
    "uuid-3": ("instance-3", "web"),
    "uuid-4": ("uuid-1", "db"),
    "uuid-5": ("instance-5", ""),
}


@pytest.mark.parametrize(
    ("name", "uuid"),
    [("uuid-1", "uuid-1"), ("instance-1", "uuid-1"), ("db", "uuid-4"), ("instance-2", "uuid-2")],
)
def test_uuid_precedes_libvirt_name_precedes_nova_name(name, uuid):
    """Users choose Nova names as they like."""
    assert resolve(name, HERE) == uuid


@pytest.mark.parametrize("name", ["web", "nobody", ""])
def test_ambiguous_or_unknown_name_is_an_error(name):
    """Nothing is guessed."""
    with pytest.raises(AmpError, match=r"several instances|no instance"):
        resolve(name, HERE)


@pytest.mark.parametrize("name", ["instance-0000002a", "71a28349-0d3e-4a6f-8a3c-2f4f3a9f6a10"])
def test_a_display_name_never_stands_for_another_instance(name):
    """A tenant may call an instance like one that has just left this host: that names nothing."""
    here = {"uuid-1": ("instance-00000001", name)}

    with pytest.raises(AmpError, match=f"no instance '{name}'"):
        resolve(name, here)
    assert resolve(name, here | {"uuid-2": (name, "web")}) == "uuid-2"
