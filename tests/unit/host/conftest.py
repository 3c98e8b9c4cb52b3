# SPDX-License-Identifier: Apache-2.0
"""Fake hosts and nodes of either cgroup version."""

import pytest

from tests.support.fakehost import FakeFiles, Node


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(request, tmp_path, monkeypatch):
    """A fake node: a host, libvirt, the sensor and the writer."""
    return Node(tmp_path, monkeypatch, request.param)


@pytest.fixture
def running(node):
    """A fake node with one domain of two vCPUs, which has been observed."""
    node.start()
    node.see()
    return node


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def host(request, tmp_path, monkeypatch):
    """A fake host."""
    found = FakeFiles(tmp_path, request.param)
    found.kernel.install(monkeypatch)
    return found
