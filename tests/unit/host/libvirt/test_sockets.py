# SPDX-License-Identifier: Apache-2.0
"""What the agent's unit shows of libvirt's sockets."""

import os
import socket

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.host.libvirt import hypervisor
from amp_nova.host.libvirt.hypervisor import Hypervisor
from amp_nova.kernel import files


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Where libvirt listens."""
    path = str(tmp_path / "libvirt-sock-ro")
    monkeypatch.setattr(hypervisor, "SOCKETS", (path,))
    return path


def test_a_socket_that_is_here_or_nowhere_takes_no_restart(path):
    """Before libvirt's start, while it runs, and after a crash that left its file."""
    assert not Hypervisor("qemu:///system").out_of_sight
    with socket.socket(socket.AF_UNIX) as libvirt:
        libvirt.bind(path)
        libvirt.listen()
        assert not Hypervisor("qemu:///system").out_of_sight
    assert not Hypervisor("qemu:///system").out_of_sight


def test_a_socket_that_is_elsewhere_takes_a_restart(path):
    """libvirt listens at its path, which is missing from this view of the file system."""
    with socket.socket(socket.AF_UNIX) as libvirt:
        libvirt.bind(path)
        libvirt.listen()
        os.unlink(path)
        assert Hypervisor("qemu:///system").out_of_sight


def test_a_mount_of_a_socket_that_was_removed_takes_a_restart(tmp_path, monkeypatch):
    """Mounted, the old socket stays; it has no link any more, and there is another at its path."""
    with (tmp_path / "old").open("w") as old:
        mounted = f"/proc/self/fd/{old.fileno()}"
        monkeypatch.setattr(hypervisor, "SOCKETS", (mounted,))
        monkeypatch.setattr(files, "text", lambda _path: f"Num Path\n0: 00010000 {mounted}\n")
        assert not Hypervisor("qemu:///system").out_of_sight
        os.unlink(old.name)
        assert Hypervisor("qemu:///system").out_of_sight


def test_a_user_with_very_many_sockets_does_not_end_the_agent(path, monkeypatch):
    """What takes too much to read is not read; libvirt is waited for."""
    monkeypatch.setattr(files, "TEXT_BYTES_MAX", 10)

    assert not Hypervisor("qemu:///system").out_of_sight
