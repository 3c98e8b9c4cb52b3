# SPDX-License-Identifier: Apache-2.0
"""The sensor on a fake host; libvirt is a fake that knows domains, and counters are files."""

import os

import pytest

from amp_nova.exceptions import ConfigInvalid, TopologyUnknown
from amp_nova.host.counters.sources import Counters
from amp_nova.host.sensor import THOROUGH_EVERY
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Counts
from amp_nova_lab.tcg_counter import TcgCounter
from tests.support.fakehost import Node, descriptors, put, put_limit, resource, topology
from tests.unit.lab.test_tcg_counter import PID, file_of, started

NAME = "instance-00000001"
R = resource(NAME)
KEYS = [(R, 0), (R, 1)]
LIMIT = Bandwidth(5000, 20000)


PIN = '<vcpupin vcpu="1" cpuset="2"/>'


@pytest.mark.parametrize(
    ("said", "allowed"),
    [
        ({}, [{0, 1, 2}] * 2),
        ({"cpuset": "2-3"}, [{2, 3}] * 2),
        ({"cpuset": "1,3,7-9"}, [{1, 3}] * 2),
        ({"cpuset": "0-1", "cputune": PIN}, [{0, 1}, {2}]),
    ],
    ids=["any process's, not isolated", "isolated by name", "online only", "pins first"],
)
def test_the_definition_says_which_pcpus_are_allowed(node, said, allowed):
    """pCPU 3 is isolated; 9 is online, but of an unknown core type."""
    node.topology = topology(isolated=[3])
    node.online = frozenset({0, 1, 2, 3, 9})
    node.start(**said)

    assert [v.allowed for v in node.see().vcpus] == allowed


@pytest.mark.parametrize("content", [None, "", "qemu", "-1", "12 13"])
def test_a_domain_without_a_process_is_reported(node, content):
    """The sentence names the pid file, and the other domains are read."""
    node.start()
    node.start("instance-00000002", pid=4100)
    path = node.host.run_path / f"{NAME}.pid"
    path.unlink() if content is None else path.write_text(content)

    seen = node.see()

    assert seen.vcpus == ()
    assert seen.failure.startswith("its threads cannot be read: ")
    assert path.name in seen.failure
    assert node.see("instance-00000002").failure is None


def test_vcpu_without_a_group_of_its_own_is_reported_until_it_has_one(node):
    """libvirt moves a new thread to its group a moment late; the others are read meanwhile."""
    node.host.start(vcpus=0)
    node.libvirt.define()
    assert node.see().failure == "none of its vCPUs has a CPU cgroup of its own"
    node.host.plug(NAME, 0)
    tid = node.host.plug(NAME, 1, group="emulator")

    node.sensor.reread()
    seen = node.see()
    assert [v.index for v in seen.vcpus] == [0]
    assert seen.failure == "vCPU 1 has no CPU cgroup of its own"

    node.host.group(NAME, "vcpu1")
    where = node.host.root / f"proc/4000/task/{tid}/cgroup"
    where.write_text(where.read_text().replace("emulator", "vcpu1"))
    seen = node.see()
    assert (seen.failure, [v.index for v in seen.vcpus]) == (None, [0, 1])


@pytest.mark.parametrize("rescan_s", [-1.0, 10.0])
def test_reused_pid_is_noticed_though_its_threads_have_the_old_ids(tmp_path, monkeypatch, rescan_s):
    """Descriptors of the old process fail, whatever process has its ids now."""
    node = Node(tmp_path, monkeypatch, rescan_s=rescan_s)
    node.start()
    node.see()
    node.host.stop()
    node.host._next_tid = 5000
    node.start(pid=4000, began=500)

    assert node.see().domain.incarnation == "4000:500"


def test_nothing_leaks_descriptors(node):
    """Neither a domain that cannot be read for a hundred cycles, nor one that is gone."""
    node.start()
    (node.host.root / f"proc/4000/task/{node.host.tid(1)}/schedstat").unlink()
    before = descriptors()

    for _ in range(100):
        assert node.see().failure
    assert descriptors() == before

    node.start("instance-00000002", pid=4100)
    node.see("instance-00000002")
    node.libvirt.known.clear()
    assert node.sensor.observe().domains == ()
    assert descriptors() == before


@pytest.mark.parametrize(
    ("rescan_s", "current"), [(10.0, (1, 2)), (-1.0, (2, 2))], ids=["event", "rescan"]
)
def test_vcpus_that_are_plugged_and_unplugged_are_followed(
    tmp_path, monkeypatch, rescan_s, current
):
    """libvirt's event about a new vCPU is enough, and a rescan finds it without one.

    So does it find what others did to a vCPU that sleeps. Descriptors of those that went are
    closed.
    """
    node = Node(tmp_path, monkeypatch, rescan_s=rescan_s)
    node.start(vcpus=1)
    node.libvirt.define(vcpus=2, current=current[0])
    node.see()
    before = descriptors()
    node.host.plug(NAME, 1)
    node.libvirt.define(vcpus=2, current=current[1])
    node.kernel.affinity[node.host.tid(0)] = {3}

    seen = node.see()
    assert [v.index for v in seen.vcpus] == [0, 1]
    assert rescan_s > 0.0 or seen.vcpus[0].pcpus == {3}
    node.host.unplug(NAME, 1)
    seen = node.see()
    assert (seen.failure, [v.index for v in seen.vcpus]) == (None, [0])
    assert descriptors() == before


def test_allowed_pcpus_follow_those_that_are_online(running):
    """The topology is detected again, once, when one comes that was not there before."""
    found = topology(fast=[2, 3, 4])
    for online, loads in (range(3), 1), (range(4), 1), (range(5), 2), (range(5), 2):
        running.online, running.topology = frozenset(online), found

        assert running.see().vcpus[0].allowed == set(online)
        assert running.loads == loads


@pytest.mark.parametrize("error", [TopologyUnknown("half a core"), ConfigInvalid("left out: 9")])
def test_known_pcpus_stay_in_use_when_detection_fails_after_hotplug(running, caplog, error):
    """The agent continues with the known pCPUs that are still online, and logs the error once."""
    running.online, running.topology = frozenset({0, 1, 2, 9}), error

    seen, again = running.see(), running.see()

    assert seen.vcpus[0].allowed == again.vcpus[0].allowed == {0, 1, 2}
    assert caplog.text.count(str(error)) == 1


def test_limits_above_and_real_time_classes_are_read(node):
    """Of the domain's group and the one of all guests; the topmost group has no files for it."""
    node.start()
    group = node.host.group(NAME, "vcpu0").parent
    put_limit(group, node.host.version, 10_000, 100_000)
    put_limit(group.parent, node.host.version, "max", 50_000)
    for policy, realtime in [(1, True), (2, True), (6, True), (0, False), (3, False)]:
        node.host.schedule(policy, index=1)
        node.sensor.reread()

        assert node.see().realtime == ({1} if realtime else set())
    name = f"machine/qemu-1-{NAME}.libvirt-qemu"
    assert node.see().ceilings == ((name, Bandwidth(10_000, 100_000)),)

    put_limit(group, node.host.version, "max", 100_000)
    put_limit(group.parent, node.host.version, 20_000, 50_000)
    for _ in range(THOROUGH_EVERY):
        node.sensor.reread()
        seen = node.see()
    assert seen.ceilings == (("machine", Bandwidth(20_000, 50_000)),)


@pytest.mark.parametrize(
    ("version", "content", "weight"),
    [
        (2, 100, 100), (2, 0, 0), (1, 1024, 100), (1, 51, 5), (1, 3, 0), (1, 262144, 25600),
    ],
)  # fmt: skip
def test_cpu_weight_is_that_of_the_domains_group(tmp_path, monkeypatch, version, content, weight):
    """In the unit of ``cpu.weight`` in either cgroup version."""
    node = Node(tmp_path, monkeypatch, version)
    node.start()
    put(node.host.weight(), content)

    assert node.see().cpu_weight == weight


def test_cpu_weight_is_unknown_without_the_file_or_beside_shares_of_its_own(node):
    """In a kernel without weights, and for a domain whose definition has CPU shares."""
    node.start()
    node.host.weight().unlink()
    assert node.see().cpu_weight is None

    node.start("weighted", pid=4100, cputune="<shares>100</shares>")
    assert node.see("weighted").cpu_weight is None


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def counted(request, tmp_path, monkeypatch):
    """A fake node of either cgroup version, with an emulated guest of two counted vCPUs."""
    counters = Counters(tmp_path, retry_s=0.0)
    node = Node(tmp_path, monkeypatch, request.param, counters=counters)
    node.host.start(NAME, 2, PID, comm="CPU {}/TCG")
    node.libvirt.define(NAME, vcpus=2, kind="qemu")
    started(tmp_path)
    file_of(tmp_path, 1000, 2000)
    return node


def test_sample_has_time_run_wait_and_instructions(counted):
    """Of every requested vCPU; readings and the summary of what counts the vCPUs have them too."""
    assert [v.counts for v in counted.see().vcpus] == [Counts(1000), Counts(2000)]
    assert counted.sensor.counting() == {("tcg", ""): 2}

    samples = counted.sensor.sample(KEYS)

    assert [samples[key].instructions for key in KEYS] == [1000, 2000]
    assert (samples[KEYS[0]].run_ns, samples[KEYS[0]].wait_ns) == (1000, 500)
    assert samples[KEYS[0]].time_ns <= samples[KEYS[1]].time_ns


def test_cpu_time_of_a_sample_is_of_the_same_moment_as_its_instructions(counted, monkeypatch):
    """``schedstat`` lags by up to a timer tick: it counts only if nothing better is known."""
    monkeypatch.setattr(TcgCounter, "read", lambda self: Counts(3000, run_ns=1700))
    counted.see()

    sample = counted.sensor.sample(KEYS)[KEYS[0]]

    assert (sample.run_ns, sample.wait_ns, sample.instructions) == (1700, 500, 3000)


def test_vcpu_that_is_gone_or_unknown_is_left_out(counted):
    """The others are sampled and limited."""
    counted.see()
    counted.host.unplug(NAME, 1)

    assert list(counted.sensor.sample([*KEYS, ("nobody", 0)])) == KEYS[:1]
    assert counted.writer.throttle(dict.fromkeys([*KEYS, ("nobody", 0)], LIMIT)) == {}
    assert counted.host.limit(NAME, 0) == "5000 20000"


def test_vcpu_that_is_not_counted_is_left_out_with_a_reason(counted):
    """Its file is damaged: the reading says so, until the file is right again."""
    counted.see()
    path = file_of(counted.host.root, 1000, 2000)
    os.truncate(path, 64 + 64)

    assert list(counted.sensor.sample(KEYS)) == KEYS[:1]
    put(counted.host.root / f"proc/{PID}/task/{counted.host.tid(1)}/schedstat", "2000 500 8")
    vcpu = counted.see().vcpus[1]
    assert vcpu.counts is None
    assert vcpu.uncounted
    file_of(counted.host.root, 1500, 2500)
    assert counted.sensor.sample(KEYS)[KEYS[1]].instructions == 2500
