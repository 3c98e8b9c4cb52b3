"""The vCPU threads of a QEMU process, on a fake host."""

import os

import pytest

from amp_nova.exceptions import ActuationFailed
from amp_nova.host import vcpu_threads
from amp_nova.host.cgroup.groups import mounts
from amp_nova.host.counters.sources import Counters
from amp_nova.model.allocation import Step
from amp_nova.model.bandwidth import Bandwidth
from tests.fakehost import FakeHost, descriptors, remove

NAME = "instance-00000001"
ALL = frozenset(range(8))


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def host(request, tmp_path, monkeypatch):
    """A fake host of either version."""
    found = FakeHost(tmp_path, request.param)
    found.kernel.install(monkeypatch)
    return found


def of(host, pid=4000):
    """The threads of a fake process."""
    return vcpu_threads.VcpuThreads(host.root, pid, mounts(host.root), Counters("none"))


@pytest.mark.parametrize("comm", ["CPU {}/KVM", "CPU {}/TCG"])
def test_vcpus_are_found_by_their_threads_names(host, comm):
    """QEMU names vCPU threads alike whether KVM or TCG runs them."""
    host.start(vcpus=12, comm=comm)

    found = of(host)

    assert list(found.by_index) == list(range(12))
    assert found.by_index[11].tid == host.tid(11)


def test_other_threads_are_not_vcpus(host):
    """Workers, I/O threads and a thread for all vCPUs at once are no vCPU."""
    host.start(vcpus=1)
    for comm in ("worker", "IO iothread1", "ALL CPUs/TCG", "vnc_worker", "my CPU 1/KVM"):
        host.thread(4000, comm, host.group(NAME, "vcpu1"))

    assert list(of(host).by_index) == [0]


def test_reading_has_every_counter_and_limit(host):
    """A reading says what ran, what waited, what was throttled and what holds."""
    host.start(vcpus=1)

    reading = of(host).by_index[0].read(frozenset({1}))

    assert (reading.run_ns, reading.wait_ns, reading.throttled_ns) == (1000, 500, 3000)
    assert (reading.bandwidth, reading.pcpus, reading.allowed) == (None, ALL, frozenset({1}))


def test_unchanged_affinity_is_the_same_object(host):
    """Nothing is built anew for an affinity that has not changed."""
    host.start(vcpus=1)
    thread = of(host).by_index[0]

    assert thread.pcpus() is thread.pcpus()


@pytest.mark.parametrize("group", ["", "emulator", "vcpu9"])
def test_vcpu_without_a_group_of_its_own_is_left_out_and_named(host, group):
    """A limit in a group that others share would hit them: such a vCPU is not touched."""
    host.start(vcpus=1)
    host.plug(NAME, 1, group=group)

    found = of(host)

    assert list(found.by_index) == [0]
    assert found.groupless == {1}


def test_vcpu_whose_controller_is_not_mounted_is_left_out(host):
    """Without a cpu controller there is nothing to limit a vCPU with."""
    host.start(vcpus=1)

    found = vcpu_threads.VcpuThreads(host.root, 4000, {}, Counters("none"))

    assert not found.by_index
    assert found.groupless == {0}


def test_affinity_is_set_and_read_back(host):
    """A step with pCPUs moves the thread."""
    host.start(vcpus=1)
    thread = of(host).by_index[0]

    thread.take(Step(pcpus=frozenset({2, 3})))

    assert thread.pcpus() == {2, 3}


def test_narrower_affinity_than_asked_for_is_a_failure(host):
    """The kernel cuts a mask to the cpuset without a word: we say it."""
    host.start(vcpus=1)
    host.kernel.pcpus = frozenset({2})

    with pytest.raises(ActuationFailed) as caught:
        of(host).by_index[0].take(Step(pcpus=frozenset({2, 3})))

    assert str(caught.value) == (
        "vCPU 0 is kept on pCPUs [2], not on the [2, 3] that were asked for: its cpuset does not "
        "hold them"
    )


def test_limit_is_set_by_a_step(host):
    """A step without pCPUs sets the limit."""
    host.start(vcpus=1)

    of(host).by_index[0].take(Step(bandwidth=Bandwidth(5000, 20000)))

    assert host.limit() == "5000 20000"


def test_plugged_vcpu_is_found_at_a_rescan(host):
    """A vCPU that was plugged meanwhile is there after a rescan, beside the others."""
    host.start(vcpus=1)
    found = of(host)
    first = found.by_index[0]
    host.plug(NAME, 1)

    found.rescan()

    assert list(found.by_index) == [0, 1]
    assert found.by_index[0] is first


def test_unplugged_vcpu_is_gone_after_a_rescan(host):
    """So is one that was unplugged, with its descriptors."""
    host.start(vcpus=1)
    before = descriptors()
    found = of(host)
    one = descriptors() - before
    host.plug(NAME, 1)
    found.rescan()
    host.unplug(NAME, 1)

    found.rescan()

    assert list(found.by_index) == [0]
    assert descriptors() == before + one


def test_group_that_moved_is_followed(host):
    """The limit is looked for where the thread is now, not where it was."""
    host.start(vcpus=1)
    found = of(host)
    task = host.root / f"proc/4000/task/{host.tid(0)}/cgroup"
    host.group("moved", "vcpu0")
    task.write_text(task.read_text().replace(NAME, "moved"))

    found.rescan()
    found.by_index[0].take(Step(bandwidth=Bandwidth(5000, 20000)))

    assert host.limit("moved") == "5000 20000"


def test_descriptors_are_given_back(host):
    """Closing gives back everything."""
    host.start(vcpus=4)
    before = descriptors()
    found = of(host)

    found.close()

    assert descriptors() == before
    assert not found.by_index


@pytest.mark.parametrize("missing", ["schedstat", "group"])
def test_vcpu_that_cannot_be_opened_leaks_nothing(host, missing):
    """One vCPU that vanishes while the others are opened costs no descriptor."""
    host.start(vcpus=2)
    if missing == "group":
        remove(host.group(NAME, "vcpu1"))
    else:
        (host.root / f"proc/4000/task/{host.tid(1)}/schedstat").unlink()
    before = descriptors()

    with pytest.raises(FileNotFoundError):
        of(host)

    assert descriptors() == before


def test_thread_that_ended_since_the_listing_is_passed_over(host, monkeypatch):
    """A thread may end between its being listed and being read, in two ways."""
    host.start(vcpus=1)
    monkeypatch.setattr(os, "listdir", lambda path, real=os.listdir: [*real(path), "9999"])
    ended = host.thread(4000, "CPU 1/KVM", host.group(NAME, "vcpu1"))
    real = vcpu_threads.Path.read_text

    def read_text(path, *args):
        if path.parent.name == str(ended):
            raise ProcessLookupError(3, "No such process")
        return real(path, *args)

    monkeypatch.setattr(vcpu_threads.Path, "read_text", read_text)

    assert list(of(host).by_index) == [0]


def test_process_that_has_gone_says_so(host):
    """No process is an OSError, not an instance without vCPUs."""
    with pytest.raises(FileNotFoundError):
        of(host, pid=4999)


def test_thread_that_has_gone_says_so(host):
    """Reading a thread that ended is a ProcessLookupError."""
    host.start(vcpus=1)
    thread = of(host).by_index[0]
    host.stop()

    with pytest.raises(ProcessLookupError):
        thread.read(ALL)


def test_lives_of_one_pid_are_told_apart(host):
    """A process that began at another time is another one, whatever its name is."""
    host.start(pid=4000, began=77)
    first = vcpu_threads.incarnation(host.root, 4000)
    host.stop()
    host.start(pid=4000, began=78)

    assert first == "4000:77"
    assert vcpu_threads.incarnation(host.root, 4000) == "4000:78"


def test_threads_that_came_or_went_are_followed(host):
    """The cheap look finds them, as the thorough one does."""
    host.start(vcpus=1)
    found = of(host)

    found.follow()
    host.plug(NAME, 1)
    found.follow()

    assert list(found.by_index) == [0, 1]
