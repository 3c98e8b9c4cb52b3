# SPDX-License-Identifier: Apache-2.0
"""The vCPU threads of a QEMU process, on a fake host."""

import os

import pytest

from amp_nova.host import vcpu_threads
from amp_nova.host.counters.sources import Counters
from amp_nova.kernel import files, threads
from amp_nova.kernel.cgroups import mounts
from amp_nova.model.bandwidth import Bandwidth
from tests.support.fakehost import FakeFiles, remove

NAME = "instance-00000001"
ALL = frozenset(range(8))


def of(host, pid=4000):
    """The threads of a fake process."""
    return vcpu_threads.VcpuThreads(host.root, pid, mounts(host.root), Counters(host.root))


def test_a_thread_cannot_hide_or_pose_as_another_vcpu_by_its_name(host):
    """QEMU can rename its threads, but not move them to other cgroups."""
    host.start(vcpus=1)
    hidden = host.thread(4000, "worker", host.group(NAME, "vcpu1"))
    posing = host.thread(4000, "CPU 0/KVM", host.group(NAME, "vcpu2"))

    found = of(host)

    assert {i: t.tid for i, t in found.by_index.items()} == {0: host.tid(0), 1: hidden, 2: posing}
    assert found.groupless == frozenset()


def test_a_name_that_is_no_text_hides_nothing(host):
    """A guest's QEMU may name its threads with any bytes (prctl(2), PR_SET_NAME)."""
    host.start(vcpus=2)
    for task in (host.root / "proc/4000/task").iterdir():
        number, rest = int(task.name), (task / "stat").read_bytes().rpartition(b")")[2]
        (task / "stat").write_bytes(b"%d (\xff) \n)%b" % (number, rest))
        (task / "comm").write_bytes(b"\xff) \n\n")

    found = of(host)

    assert {i: t.read(ALL).run_ns for i, t in found.by_index.items()} == {0: 1000, 1: 1000}
    assert all(t.last_pcpu() >= 0 for t in found.by_index.values())


@pytest.mark.parametrize(
    ("status", "sandboxed"),
    [
        ("Name:\tqemu\nSeccomp:\t2\nSeccomp_filters:\t1\n", True),
        ("Name:\tqemu\nSeccomp:\t0\nSeccomp_filters:\t0\n", False),
        ("Name:\tSeccomp:\t0\nSeccomp:\t2\n", True),
        ("Name:\tqemu\n", True),  # a kernel without seccomp says nothing
    ],
)
def test_whether_qemu_has_a_filter_of_system_calls(host, status, sandboxed):
    """As ``/proc/PID/status`` says (proc(5)); a name is no answer."""
    host.start(vcpus=1)
    (host.root / "proc/4000/status").write_text(status)

    assert of(host).sandboxed() is sandboxed


def test_thousands_of_threads_displace_no_vcpu(host, monkeypatch):
    """So many are looked at, and a vCPU that is known is one of them, whatever its ID."""
    monkeypatch.setattr(threads, "THREADS_MAX", 5)
    for _ in range(3):
        host.thread(4000, "worker", host.group(NAME, "emulator"))
    host.start(vcpus=1)
    found = of(host)
    early = found.by_index[0].tid
    for task in (1, 2, 3, 4, 5, 6):
        host._next_tid = task
        host.thread(4000, "CPU 7/KVM", host.group(NAME, "emulator"))
    looked, real = [], files.text
    monkeypatch.setattr(files, "text", lambda path, *a: looked.append(path) or real(path, *a))

    found.rescan()

    assert found.by_index[0].tid == early
    assert len({os.path.dirname(path) for path in looked}) == 5


def test_a_thread_named_like_a_vcpu_makes_no_cycle_search_for_long(node, monkeypatch):
    """QEMU chooses names; libvirt chooses groups, and is given some cycles to do so."""
    node.start(vcpus=3)
    node.host.unplug(NAME, 2)
    node.host.thread(4000, "CPU 2/KVM", node.host.group(NAME, "emulator"))
    searches, real = [], vcpu_threads.find
    monkeypatch.setattr(vcpu_threads, "find", lambda *a: searches.append(a) or real(*a))
    for _ in range(100):
        assert len(node.see().vcpus) == 2
    assert len(searches) <= vcpu_threads.SEARCHES_MAX + 1

    node.host.plug(NAME, 2)  # with the search every 10 s, it is found all the same
    node.sensor.reread()
    assert len(node.see().vcpus) == 3


def test_a_second_thread_in_a_vcpus_cgroup_is_tampering_and_costs_only_the_counts(host):
    """Its instructions would not be those of the vCPU; the limit applies to both threads."""
    host.start(vcpus=2)
    found = of(host)
    before = found.by_index[1]
    extra = host.thread(4000, "CPU 1/KVM", host.group(NAME, "vcpu1"))

    found.rescan()
    reading = found.by_index[1].read(frozenset())
    assert reading.run_ns == 1000
    assert "tampered with: its cgroup holds 2 threads" in reading.uncounted
    assert found.by_index[1].tid == before.tid
    assert "tampered" not in found.by_index[0].read(frozenset()).uncounted

    remove(host.root / f"proc/4000/task/{extra}")
    found.rescan()
    assert "tampered" not in found.by_index[1].read(frozenset()).uncounted


def test_group_that_moved_is_followed(host):
    """The limit is set where the thread is now, not where it was."""
    host.start(vcpus=1)
    found = of(host)
    task = host.root / f"proc/4000/task/{host.tid(0)}/cgroup"
    host.group("moved", "vcpu0")
    task.write_text(task.read_text().replace(NAME, "moved"))

    found.rescan()
    found.by_index[0].group.set_bandwidth(Bandwidth(5000, 20000))

    assert host.limit("moved") == "5000 20000"


def test_the_weight_is_that_of_the_whole_domain(tmp_path):
    """libvirt has a level between the domain and its vCPUs in version 2."""
    host = FakeFiles(tmp_path, 2)
    host.start(vcpus=0)
    host.plug(NAME, 0, group="libvirt/vcpu{}")

    assert of(host).domain.folder == str(host.weight(NAME).parent)
