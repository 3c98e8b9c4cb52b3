"""The plugin's counter file, which another process writes: any of it may be missing or wrong."""

import os
import struct

import pytest

from amp_nova.exceptions import CountersUnavailable
from amp_nova.host.counters.tcg import MAGIC, VERSION, TcgCounter, counter_file
from tests.fakehost import put

PID = 4000


def file_of(root, *counts, magic=MAGIC, version=VERSION, vcpus=None, pid=PID):
    """A counter file as the plugin makes it."""
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


@pytest.fixture
def root(tmp_path):
    """A machine on which QEMU runs with the plugin."""
    started(tmp_path)
    return tmp_path


def test_every_vcpu_has_a_count_of_its_own(root):
    """And it follows what the plugin writes."""
    path = file_of(root, 1000, 2000)
    first, second = TcgCounter(root, PID, 0), TcgCounter(root, PID, 1)

    assert (first.read().instructions, second.read().instructions) == (1000, 2000)
    with path.open("r+b") as file:
        file.seek(64 + 64)
        file.write(struct.pack("=Q", 2500))
    assert (first.read().instructions, second.read().instructions) == (1000, 2500)
    assert first.read().cycles is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("-plugin", "file=/usr/lib/icount.so,count=callback,out=/dev/shm/vm.icount"),
        ("--plugin", "/usr/lib/icount.so,out=/dev/shm/vm.icount,count=inline"),
        ("-plugin", "/usr/lib/other.so,arg=1", "-plugin", "x.so,out=/dev/shm/vm.icount"),
    ],
)
def test_the_file_is_found_by_the_arguments_of_qemu(tmp_path, arguments):
    """However they were written."""
    started(tmp_path, *arguments)

    assert counter_file(tmp_path, PID) == tmp_path / f"proc/{PID}/root/dev/shm/vm.icount"


def test_a_comma_in_the_name_is_written_twice(tmp_path):
    """QEMU's own rule."""
    started(tmp_path, "-plugin", "/x.so,out=/dev/shm/a,,b,count=inline")

    assert counter_file(tmp_path, PID).name == "a,b"


def test_a_guest_without_the_plugin_is_told_so(tmp_path):
    """It is emulated, and nothing counts."""
    started(tmp_path, "-smp", "2")

    with pytest.raises(CountersUnavailable, match="without the plugin"):
        TcgCounter(tmp_path, PID, 0)


def refusal(root, index=0):
    """Why it cannot be counted; never anything but a sentence."""
    with pytest.raises(CountersUnavailable) as caught:
        TcgCounter(root, PID, index)
    return str(caught.value)


def test_a_file_of_somebody_else_is_not_believed(root):
    """Each kind of wrong file has its sentence."""
    assert "No such file" in refusal(root)
    assert "/dev/shm/vm.icount" in refusal(root)
    path = file_of(root, 1, magic=7)
    assert "not of the plugin" in refusal(root)
    file_of(root, 1, version=9)
    assert "version 9" in refusal(root)
    file_of(root, 1, pid=4711)
    assert "of process 4711" in refusal(root)
    file_of(root, 1)
    assert "none with index 1" in refusal(root, index=1)
    path.write_bytes(b"AMP")
    assert "too short" in refusal(root)
    path.unlink()
    path.mkdir()
    assert "no regular file" in refusal(root)


def test_a_pipe_or_link_in_its_place_does_no_harm(root):
    """A pipe would wait for ever, a link lead anywhere."""
    path = file_of(root, 1)
    target = path.rename(path.with_name("elsewhere"))
    path.symlink_to(target)
    assert "cannot be opened" in refusal(root)
    path.unlink()
    os.mkfifo(path)
    assert "no regular file" in refusal(root)


def test_a_file_that_is_cut_short_while_in_use_is_lost(root):
    """This process goes on: it would not if it had mapped the file."""
    path = file_of(root, 1000)
    counter = TcgCounter(root, PID, 0)
    counter.read()
    os.truncate(path, 64)

    with pytest.raises(CountersUnavailable, match="cut short"):
        counter.read()


def test_a_count_that_goes_backwards_is_lost(root):
    """Somebody wrote into it."""
    path = file_of(root, 1000)
    counter = TcgCounter(root, PID, 0)
    counter.read()
    with path.open("r+b") as file:
        file.seek(64)
        file.write(struct.pack("=Q", 10))

    with pytest.raises(CountersUnavailable, match="backwards"):
        counter.read()
