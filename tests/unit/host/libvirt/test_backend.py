# SPDX-License-Identifier: Apache-2.0
"""Limits and affinities through libvirt, on a fake host: a FAKE libvirt writes its cgroups."""

from dataclasses import replace

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

import libvirt

from amp_nova.exceptions import HypervisorUnavailable
from amp_nova.host.libvirt.backend import LibvirtBackend
from amp_nova.host.libvirt.domain_xml import MARK_URI, Mark, Pin, parse
from amp_nova.host.writer import WriteConditions, Writer
from amp_nova.model import cpulist
from amp_nova.model.allocation import Change, Changes, Failure, Outcome
from amp_nova.model.bandwidth import Bandwidth, Step
from tests.support import fakehost
from tests.support.fakehost import FakeLibvirt, Node, nova_xml, put, resource

NAME = "instance-00000001"
R = resource(NAME)
LIMIT = Bandwidth(5000, 20000)
ON_3 = Step(pcpus=frozenset({3}))


class FakeHandle:
    """A FAKE of libvirt's handle of a domain: it does what libvirt does to cgroups and threads."""

    def __init__(self, node):
        self.node = node
        self.calls = []
        self.error = None
        self.mark = None  # as set here, or that of the definition
        self.pins = None  # as in the definition last read

    def setSchedulerParametersFlags(self, tunables, flags):  # noqa: N802  # libvirt's name
        """Every vCPU has the same limit afterwards."""
        self._call("tune", dict(tunables), flags)
        if "cpu_shares" in tunables:
            put(self.node.host.weight(), tunables["cpu_shares"])
        for folder in self.node.host.group(NAME, "emulator").parent.glob("vcpu*"):
            quota, period = fakehost.limit(folder)
            period = tunables.get("vcpu_period", period)
            quota = tunables.get("vcpu_quota", quota)
            quota = "max" if quota == -1 else quota
            fakehost.put_limit(folder, self.node.host.version, quota, period)

    def pinVcpuFlags(self, index, cpumap, flags):  # noqa: N802  # libvirt's name
        """The thread may run on these."""
        self._call("pin", (index, cpumap), flags)
        kept = {pcpu for pcpu, wanted in enumerate(cpumap) if wanted}
        self.node.kernel.affinity[self.node.host.tid(index)] = kept

    def setMetadata(self, kind, text, prefix, uri, flags):  # noqa: N802  # libvirt's name
        """Remember the mark."""
        assert (kind, prefix, uri) == (libvirt.VIR_DOMAIN_METADATA_ELEMENT, "amp", MARK_URI)
        self.mark = text
        text = text.replace("<tuning", f'<x:tuning xmlns:x="{MARK_URI}"').replace("<pin", "<x:pin")
        text = nova_xml(metadata=text.replace("</tuning", "</x:tuning"))
        self._call("mark", parse(text).mark, flags)

    def XMLDesc(self, flags):  # noqa: N802  # libvirt's name
        """The definition in force, which has other pins since somebody changed them."""
        assert flags == 0
        known = self.node.libvirt.definition(R).pins if self.pins is None else self.pins
        tune = (f'<vcpupin vcpu="{i}" cpuset="{cpulist.show(p)}"/>' for i, p in known.items())
        return nova_xml(cputune="".join(tune))

    def metadata(self, kind, uri, flags):
        """The mark without its namespace, as libvirt 9 to 11 give it."""
        assert (kind, uri, flags) == (libvirt.VIR_DOMAIN_METADATA_ELEMENT, MARK_URI, 1)
        mark = self.node.libvirt.definition(R).mark
        if self.mark is None and mark == Mark():
            error = libvirt.libvirtError("metadata not found")
            error.err = (libvirt.VIR_ERR_NO_DOMAIN_METADATA, *[None] * 8)
            raise error
        return self.mark or mark.xml()

    def _call(self, what, about, flags):
        assert flags == libvirt.VIR_DOMAIN_AFFECT_LIVE  # never the persistent definition
        if self.error:
            raise self.error
        self.calls.append((what, about))

    def made(self, what):
        """What it was called with, in order."""
        return [about for name, about in self.calls if name == what]


class Libvirt(FakeLibvirt):
    """A FAKE of a ``Hypervisor`` that changes domains."""

    def __init__(self, node):
        super().__init__()
        self.handle = FakeHandle(node)

    def definition(self, uuid):
        """As last read."""
        return self.known[uuid]

    def read_again(self, uuid):
        """In the next cycle."""
        self.known[uuid] = replace(self.known[uuid], pins=self.handle.pins)

    def change(self, _uuid, write, _told):
        """At once."""
        write(self.handle)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(request, tmp_path, monkeypatch):
    """A fake node of either cgroup version, whose writer writes through libvirt."""
    found = Node(tmp_path, monkeypatch, request.param)
    found.libvirt = found.sensor.hypervisor = Libvirt(found)
    writer = Writer(found.sensor, WriteConditions(), LibvirtBackend(found.libvirt))
    found.writer = writer
    return found


def apply(node, *changes, weight=None):
    """Apply changes of vCPUs (index and steps), and set the CPU weight."""
    made = tuple(Change((R, i), steps) for i, *steps in changes)
    return node.writer.apply(Changes(made, {} if weight is None else {R: weight}))


def test_changes_are_made_and_marked_first(running):
    """The CPU weight, a pin and a limit."""
    assert apply(running, (0, ON_3, Step(bandwidth=LIMIT)), weight=1000) == Outcome()

    pins = {0: Pin(frozenset({3}), None)}
    assert running.libvirt.handle.calls == [
        ("mark", Mark(shares=True)),
        ("tune", {"cpu_shares": {1: 10240, 2: 1000}[running.host.version]}),
        ("mark", Mark(shares=True, pins=pins)),
        ("pin", (0, (False, False, False, True))),
        ("mark", Mark(quota=True, shares=True, pins=pins)),
        ("tune", {"vcpu_period": 20000, "vcpu_quota": 5000}),
    ]
    assert running.see().vcpus[0].bandwidth == LIMIT
    assert running.see().vcpus[0].pcpus == {3}
    assert running.see().cpu_weight == 1000
    assert not running.kernel.written  # nothing but libvirt writes


def test_one_call_limits_all_vcpus(running):
    """The second vCPU has the limit already."""
    assert apply(running, (0, Step(bandwidth=LIMIT)), (1, Step(bandwidth=LIMIT))) == Outcome()

    assert len(running.libvirt.handle.made("tune")) == 1
    assert [v.bandwidth for v in running.see().vcpus] == [LIMIT, LIMIT]


@pytest.mark.parametrize(
    ("now", "to", "order"),
    [
        (Bandwidth(5000, 20000), Bandwidth(6000, 20000), ["vcpu_quota"]),
        (Bandwidth(5000, 20000), Bandwidth(6000, 50000), ["vcpu_period", "vcpu_quota"]),
        (Bandwidth(6000, 50000), Bandwidth(5000, 20000), ["vcpu_quota", "vcpu_period"]),
        (None, Bandwidth(5000, 20000), ["vcpu_period", "vcpu_quota"]),
        (Bandwidth(5000, 20000), None, ["vcpu_quota", "vcpu_period"]),
    ],
)
def test_limits_pass_by_the_lower_ratio(running, now, to, order):
    """libvirt writes the tunables one by one; an unchanged period is not written again."""
    apply(running, (0, Step(bandwidth=now)))

    assert apply(running, (0, Step(bandwidth=to))) == Outcome()

    tunables = running.libvirt.handle.made("tune")[-1]
    assert list(tunables) == order
    assert running.see().vcpus[0].bandwidth == to


def test_release_puts_libvirts_values_back(node):
    """No quota, the kernel's period, usual shares, the pin that was there; all remain marked."""
    node.start(vcpus=1, cpuset="0-3", cputune='<vcpupin vcpu="0" cpuset="2-3"/>')
    node.host.kernel.affinity[node.host.tid(0)] = {2, 3}
    node.see()
    apply(node, (0, ON_3, Step(bandwidth=LIMIT)), weight=500)

    assert node.release() == []

    usual = {1: 1024, 2: 100}[node.host.version]
    tunes, pin = node.libvirt.handle.made("tune")[-2:], node.libvirt.handle.made("pin")[-1]
    assert tunes == [{"vcpu_quota": -1, "vcpu_period": 100000}, {"cpu_shares": usual}]
    assert pin == (0, (False, False, True, True))
    assert node.libvirt.handle.made("mark")[-1].original({0: frozenset({2, 3})}) == {0: {2, 3}}
    assert node.see().vcpus[0].bandwidth is None
    assert node.see().vcpus[0].pcpus == {2, 3}


def test_a_pin_that_libvirt_has_not_reported_yet_is_kept(running):
    """Nova or an operator moved the vCPU; libvirt's event about it is late."""
    running.libvirt.handle.pins = {0: frozenset({2})}

    failure = apply(running, (0, ON_3)).failures[R, 0]

    assert failure.reason == "libvirt"
    assert "its pin in libvirt is newer than the one last read" in failure.message
    assert not running.libvirt.handle.calls
    assert apply(running, (0, ON_3)) == Outcome()  # the definition was read again


def test_a_refusal_of_libvirt_is_a_failure(running):
    """In libvirt's words, counted apart."""
    running.libvirt.handle.error = HypervisorUnavailable("libvirt at test: access denied")

    outcome = apply(running, (0, Step(bandwidth=LIMIT)), weight=10)

    said = "cannot be changed: libvirt at test: access denied"
    assert outcome == Outcome(
        {(R, 0): Failure("libvirt", f"vCPU 0 {said}")},
        {R: Failure("libvirt", f"its CPU weight {said}")},
    )


def test_what_reads_back_otherwise_is_a_failure(running, monkeypatch):
    """libvirt said yes, and the kernel has something else."""
    monkeypatch.setattr(FakeHandle, "setSchedulerParametersFlags", lambda *_: None)

    outcome = apply(running, (0, Step(bandwidth=LIMIT)), weight=10)

    limit, weight = outcome.failures[R, 0], outcome.weight_failures[R]
    assert {limit.reason, weight.reason} == {"refused"}
    assert "no limit after the limit 5000/20000 us was set" in limit.message
    assert weight.message.startswith("its CPU weight: the kernel reports the cpu.")


def test_a_burst_is_reported(node):
    """libvirt 9 has no tunable for it, so nothing can end it."""
    node.start()
    put(node.host.burst(), 2000)
    node.see()

    failure = apply(node, (0, Step(bandwidth=LIMIT))).failures[R, 0]

    assert failure.message == "vCPU 0: it has a burst of 2000 us, which libvirt cannot clear"


def test_a_change_that_libvirt_makes_late_stays_marked(running, monkeypatch):
    """Its caller stopped waiting and takes it for failed, but the limit is in force."""

    def late(_uuid, write, _told):
        write(running.libvirt.handle)
        raise HypervisorUnavailable("libvirt has not answered yet")

    with monkeypatch.context() as slow:
        slow.setattr(running.libvirt, "change", late)
        assert apply(running, (0, Step(bandwidth=LIMIT))).failures

    assert apply(running, weight=10) == Outcome()
    assert running.libvirt.handle.made("mark")[-1] == Mark(quota=True, shares=True)
