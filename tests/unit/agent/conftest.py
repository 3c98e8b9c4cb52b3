# SPDX-License-Identifier: Apache-2.0
"""The agent's service over a fake host, for every test that asks for it."""

import pytest


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """A fake node with its configuration."""
    pytest.importorskip("libvirt", reason="libvirt-python is not installed")
    from tests.unit.agent.setups import Setup  # only where libvirt is

    return Setup(tmp_path, monkeypatch)
