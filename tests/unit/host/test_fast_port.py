"""Samples and limits of vCPUs that book Ips, on a fake host with a FAKE counter."""

import os

import pytest

from amp_nova.exceptions import CountersUnavailable
from amp_nova.host.counters.sources import Counters
from amp_nova.host.counters.tcg import TcgCounter
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import Counts
from tests.fakehost import Node, put, resource
from tests.unit.host.counters.test_tcg import PID, file_of, started

NAME = "instance-00000001"
KEYS = [(resource(NAME), 0), (resource(NAME), 1)]
LIMIT = Bandwidth(5000, 20000)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(request, tmp_path, monkeypatch):
    """A fake node of either cgroup version, with an emulated guest of two counted vCPUs."""
    counters = Counters("auto", tmp_path, retry_s=0.0)
    node = Node(tmp_path, monkeypatch, request.param, counters=counters)
    node.host.start(NAME, 2, PID, comm="CPU {}/TCG")
    node.libvirt.define(NAME, vcpus=2, kind="qemu")
    started(tmp_path)
    file_of(tmp_path, 1000, 2000)
    return node


def test_sample_has_time_run_wait_and_instructions(node):
    """Of every requested vCPU, without a call to libvirt."""
    node.see()

    samples = node.sensor.sample(KEYS)

    assert [samples[key].instructions for key in KEYS] == [1000, 2000]
    assert (samples[KEYS[0]].run_ns, samples[KEYS[0]].wait_ns) == (1000, 500)
    assert samples[KEYS[0]].time_ns <= samples[KEYS[1]].time_ns


def test_cpu_time_of_a_sample_is_of_the_same_moment_as_its_instructions(node, monkeypatch):
    """``schedstat`` lags by up to a timer tick: it counts only if nothing better is known."""
    monkeypatch.setattr(TcgCounter, "read", lambda self: Counts(3000, run_ns=1700))
    node.see()

    sample = node.sensor.sample(KEYS)[KEYS[0]]

    assert (sample.run_ns, sample.wait_ns, sample.instructions) == (1700, 500, 3000)


def test_readings_have_the_counts_too(node):
    """So has the summary of what counts the vCPUs."""
    assert [v.counts for v in node.see().vcpus] == [Counts(1000), Counts(2000)]
    assert node.sensor.counting() == {("tcg", ""): 2}


def test_vcpu_that_is_gone_or_unknown_is_left_out(node):
    """The others are sampled and limited."""
    node.see()
    node.host.unplug(NAME, 1)

    assert list(node.sensor.sample([*KEYS, ("nobody", 0)])) == KEYS[:1]
    assert node.writer.throttle(dict.fromkeys([*KEYS, ("nobody", 0)], LIMIT)) == {}
    assert node.host.limit(NAME, 0) == "5000 20000"


def test_vcpu_that_is_not_counted_is_left_out_with_a_reason(node):
    """Its file is damaged: the reading says so, until the file is right again."""
    node.see()
    path = file_of(node.host.root, 1000, 2000)
    os.truncate(path, 64 + 64)

    assert list(node.sensor.sample(KEYS)) == KEYS[:1]
    put(node.host.root / f"proc/{PID}/task/{node.host.tid(1)}/schedstat", "2000 500 8")
    vcpu = node.see().vcpus[1]
    assert vcpu.counts is None
    assert vcpu.uncounted
    file_of(node.host.root, 1500, 2500)
    assert node.sensor.sample(KEYS)[KEYS[1]].instructions == 2500


def test_new_incarnation_of_a_domain_has_new_counters(node):
    """QEMU was restarted: another process, another file, and counts from zero."""
    node.see()
    node.host.stop(NAME, PID)
    node.host.start(NAME, 2, 4001, began=99, comm="CPU {}/TCG")
    words = ["qemu", "-plugin", "/x.so,out=/dev/shm/vm.icount"]
    put(node.host.root / "proc/4001/cmdline", "\0".join(words) + "\0", end="")
    put(node.host.root / "proc/4001/status", "Uid:" + f"\t{os.geteuid()}" * 4)
    fresh = node.host.root / "proc/4001/root/dev/shm/vm.icount"
    fresh.parent.mkdir(parents=True)
    fresh.write_bytes(file_of(node.host.root / "other", 7, 9, pid=4001).read_bytes())

    seen = node.see()

    assert seen.domain.incarnation.startswith("4001:")
    assert [v.counts for v in seen.vcpus] == [Counts(7), Counts(9)]


def test_vcpu_that_is_plugged_in_is_counted(node):
    """As soon as an observation has found it."""
    node.see()
    file_of(node.host.root, 1000, 2000, 3000)
    node.host.plug(NAME, 2, PID, comm="CPU {}/TCG")
    node.libvirt.define(NAME, vcpus=3, kind="qemu")

    assert [v.counts for v in node.see().vcpus][2] == Counts(3000)


def test_without_counters_everything_else_works(tmp_path, monkeypatch):
    """A host that cannot count is observed and limited."""

    class Nothing(Counters):
        def open(self, *_):
            raise CountersUnavailable("no PMU here")

    node = Node(tmp_path, monkeypatch, 2, counters=Nothing())
    node.start()

    vcpu = node.see().vcpus[0]

    assert (vcpu.counts, vcpu.uncounted) == (None, "no PMU here")
    assert node.sensor.sample(KEYS) == {}
    assert node.writer.throttle({KEYS[0]: LIMIT}) == {}
    assert node.sensor.counting() == {("none", "no PMU here"): 2}
