# SPDX-License-Identifier: Apache-2.0
"""The plugin's counter file, of which any part may be missing or wrong."""

import errno
import os
import struct
import threading
import time
from unittest.mock import Mock

import pytest

from amp_nova.exceptions import CountersUnavailable
from amp_nova.host.counters import perf
from amp_nova.model.observation import Counts
from amp_nova_lab.tcg_counter import MAGIC, VERSION, TcgCounter, counter_file
from tests.support.fakehost import descriptors, put

PID = 4000


def file_of(root, *counts, magic=MAGIC, version=VERSION, vcpus=None, pid=PID):
    """A counter file as the plugin writes it."""
    header = struct.pack("=QIIII", magic, version, len(counts) if vcpus is None else vcpus, pid, 0)
    slots = b"".join(struct.pack("=Q", count).ljust(64, b"\0") for count in counts)
    path = root / f"proc/{PID}/root/dev/shm/vm.icount"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.ljust(64, b"\0") + slots)
    return path


def started(root, *arguments):
    """The arguments of the QEMU process."""
    default = ("-plugin", "/usr/lib/icount.so,out=/dev/shm/vm.icount")
    words = ["/usr/bin/qemu-system-x86_64", "-name", "guest=vm", *(arguments or default)]
    put(root / f"proc/{PID}/cmdline", "\0".join(words) + "\0", end="")
    owner = os.geteuid()
    put(root / f"proc/{PID}/status", f"Name:\tqemu\nUid:\t{owner}\t{owner}\t{owner}\t{owner}\n")


@pytest.fixture
def root(tmp_path):
    """A machine that runs QEMU with the plugin."""
    started(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("-plugin", "file=/usr/lib/icount.so,count=callback,out=/dev/shm/vm"), "vm"),
        (("--plugin", "/usr/lib/icount.so,out=/dev/shm/vm,count=inline"), "vm"),
        (("-plugin", "/usr/lib/other.so,arg=1", "-plugin", "x.so,out=/dev/shm/vm"), "vm"),
        (("-plugin", "/x.so,out=/dev/shm/a,,b,count=inline"), "a,b"),
    ],
)
def test_the_file_is_found_by_the_arguments_of_qemu(tmp_path, arguments, name):
    """In every form that QEMU accepts; a comma in the name is doubled."""
    started(tmp_path, *arguments)

    assert counter_file(tmp_path, PID) == tmp_path / f"proc/{PID}/root/dev/shm/{name}"


def refusal(root, index=0):
    """The reason why a vCPU cannot be counted."""
    with pytest.raises(CountersUnavailable) as caught:
        TcgCounter(root, PID, 0, index)
    return str(caught.value)


def test_a_wrong_file_is_refused(root):
    """With a message for each kind of wrong file."""
    assert "No such file" in refusal(root)
    assert "/dev/shm/vm.icount" in refusal(root)
    path = file_of(root, 1, magic=7)
    assert "not written by the plugin" in refusal(root)
    file_of(root, 1, version=9)
    assert "version 9" in refusal(root)
    file_of(root, 1, pid=4711)
    assert "to process 4711" in refusal(root)
    file_of(root, 1)
    assert "none with index 1" in refusal(root, index=1)
    other = os.geteuid() + 1
    put(root / f"proc/{PID}/status", f"Uid:\t{other}\t{other}\t{other}\t{other}\n")
    assert f"belongs to user {os.geteuid()}, not to QEMU's ({other})" in refusal(root)
    started(root)
    path.write_bytes(b"AMP")
    assert "too short" in refusal(root)
    os.truncate(path, 1 << 40)
    assert "more than the plugin ever writes" in refusal(root)
    path.unlink()
    path.mkdir()
    assert "not a regular file" in refusal(root)
    started(root, "-smp", "2")
    assert "without the plugin" in refusal(root)


def test_a_fifo_or_link_in_its_place_is_refused(root):
    """Opening a FIFO would block; a link may lead anywhere."""
    path = file_of(root, 1)
    target = path.rename(path.with_name("elsewhere"))
    path.symlink_to(target)
    assert "cannot be opened" in refusal(root)
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in refusal(root)


def test_a_link_in_its_path_is_not_followed(root, tmp_path):
    """A compromised QEMU cannot have the agent open a file outside its own root."""
    real = file_of(root, 1000)
    (real.parent.parent / "real").mkdir()
    real.rename(real.parent.parent / "real/vm.icount")
    real.parent.rmdir()
    (real.parent.parent / "shm").symlink_to("real")

    assert refusal(root) == (
        "the plugin's file /dev/shm/vm.icount cannot be opened: Not a directory"
    )
    started(root, "-plugin", "/x.so,out=/dev/../../../../etc/passwd")
    assert refusal(root).endswith("cannot be opened: its name has no file or leads upwards")


@pytest.mark.parametrize("name", ["", "/", "\x01\n\x1b[31m", "x" * 5000, "a/" * 3000])
def test_any_name_is_one_sentence(tmp_path, name):
    """Whatever bytes QEMU's command line has."""
    (tmp_path / f"proc/{PID}/root").mkdir(parents=True)
    started(tmp_path, "-plugin", f"/x.so,out={name}")

    said = refusal(tmp_path)
    assert said.isprintable()
    assert len(said) < 400


def test_the_cpu_time_is_of_the_same_moment_as_the_count(root):
    """It gains at least what the thread's own clock does, which omits interrupts."""
    file_of(root, 1000)
    counter = TcgCounter(root, PID, threading.get_native_id(), 0)
    wall_ns, ran_ns, read_ns = [], [], []
    for _ in range(2):
        wall_ns.append(time.monotonic_ns())
        ran_ns.append(time.thread_time_ns())
        read_ns.append(counter.read().run_ns)
        ran_ns.append(time.thread_time_ns())
        wall_ns.append(time.monotonic_ns())
        while time.thread_time_ns() < ran_ns[-1] + 3_000_000:
            pass

    least, most = ran_ns[2] - ran_ns[1], wall_ns[3] - wall_ns[0]
    assert 0.99 * least <= read_ns[1] - read_ns[0] <= 1.01 * most


def test_without_permission_for_perf_events_only_the_cpu_time_is_missing(root, monkeypatch):
    """The note says so, with a remedy; no descriptor stays open."""
    file_of(root, 1000)
    monkeypatch.setattr(perf, "open_event", Mock(side_effect=PermissionError(errno.EACCES, "no")))
    before = descriptors()
    counter = TcgCounter(root, PID, 0, 0)

    assert counter.read() == Counts(1000)
    assert "timer tick" in counter.note
    assert "grant CAP_PERFMON" in counter.note

    counter.close()
    assert descriptors() == before


def test_a_file_that_something_else_writes_is_an_error(root):
    """This process survives a truncated file, which it would not with a mapping."""
    path, before = file_of(root, 1000), descriptors()
    counter = TcgCounter(root, PID, 0, 0)
    assert descriptors() == before + 2  # the file's and the clock's
    counter.read()
    with path.open("r+b") as file:
        file.seek(64)
        file.write(struct.pack("=Q", 10))
    with pytest.raises(CountersUnavailable, match="backwards"):
        counter.read()

    os.truncate(path, 64)
    with pytest.raises(CountersUnavailable, match="truncated"):
        counter.read()
    counter.close()
    assert descriptors() == before
