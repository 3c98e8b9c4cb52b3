# SPDX-License-Identifier: Apache-2.0
"""Whatever is in any file that is read of a guest: no other guest, and no cycle, is lost."""

import contextlib
import os

import pytest

from amp_nova.agent.loop import Loop
from amp_nova.exceptions import AmpError
from amp_nova.guard import locks
from amp_nova.host.io import IoHost
from amp_nova.kernel.cgroups import mounts
from tests.support.fakehost import SPOIL, put

VICTIM, OTHER = "instance-00000001", "instance-00000002"
HALF = {"amp:pref_core": "0.5", "amp:core_type": "slow"}


@pytest.fixture
def guests(node):
    """Two guests with vCPU and I/O threads, and all other files that are read of them."""
    for name, pid in ((VICTIM, 4000), (OTHER, 4100)):
        node.start(name, pid=pid, specs=HALF)
        node.host.thread(pid, "IO iothread1", node.host.group(name, "emulator"))
        put(node.host.root / f"proc/{pid}/cgroup", "0::/")
        put(node.host.burst(name), 0)
    node.io = IoHost(node.libvirt, node.host.run_path, node.host.root)
    return node


def cycle(node):
    """Remove all limits, and observe, decide and write once as a new agent does."""
    for name in (VICTIM, OTHER):
        node.host.set_limit("max", 100000, name)
    node.sensor.reread()
    Loop(node.sensor, node.writer).cycle()
    node.sensor.sample([(r, 0) for r in node.libvirt.known])
    return {r.name: r.failure for r in node.io.read(node.topology)}


def files_read(node, monkeypatch):
    """All files below the root that a cycle opens."""
    opened, real = set(), os.open

    def noted(path, *args, **more):
        opened.add(os.fspath(path))
        return real(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", noted)
        cycle(node)
    root = f"{node.host.root}/"
    paths = {node.host.root / p.removeprefix(root) for p in opened if str(p).startswith(root)}
    return sorted(p for p in paths if p.is_file())


@pytest.mark.parametrize("fault", SPOIL)
def test_no_file_of_a_guest_stops_what_is_done_for_another(guests, monkeypatch, fault):
    """Names of threads included; and it is whole again as soon as its files are."""
    paths = files_read(guests, monkeypatch)
    own = [p for p in paths if "/4000/" in str(p) or VICTIM in str(p)]
    assert {"comm", "stat", "schedstat", "cgroup", f"{VICTIM}.pid"} <= {p.name for p in own}
    for path in own:
        before = path.read_bytes()
        SPOIL[fault](path)
        for _ in range(2):  # with descriptors that are open, and with new ones
            problems = cycle(guests)
            assert guests.host.limit(OTHER).split()[0] not in ("max", "-1"), path
            assert problems[OTHER] is None, path
            assert guests.see(OTHER).failure is None, path
        if path.is_symlink():
            path.unlink()
        path.write_bytes(before)
    assert set(cycle(guests).values()) == {None}
    assert guests.see(VICTIM).failure is None
    assert guests.host.limit(VICTIM) == guests.host.limit(OTHER)


@pytest.mark.parametrize("fault", SPOIL)
def test_no_file_of_the_host_is_waited_for(guests, tmp_path, monkeypatch, fault):
    """It is read, or it is an error that commands and cycles turn into a sentence."""
    put(tmp_path / "proc/locks", "")
    inode = (tmp_path / "proc/locks").stat().st_ino
    put(tmp_path / "proc/locks", f"1: FLOCK ADVISORY WRITE 4000 00:01:{inode} 0 EOF")
    put(tmp_path / "proc/4000/comm", "qemu")
    paths = [p for p in files_read(guests, monkeypatch) if "/4" not in str(p)]
    for path in [tmp_path / "proc/self/mounts", tmp_path / "proc/locks", *paths]:
        if not path.is_file() or "instance" in str(path):
            continue
        before = path.read_bytes()
        SPOIL[fault](path)
        with contextlib.suppress(AmpError, OSError):
            locks.holder(tmp_path / "proc/locks", tmp_path / "proc")
            cycle(guests)
            mounts(guests.host.root)
        if path.is_symlink():
            path.unlink()
        path.write_bytes(before)
