"""A compute node as Actuator, on a fake host; libvirt is a fake that knows domains."""

import errno
import os
from dataclasses import replace

import pytest

from amp_nova.agent.loop import Loop
from amp_nova.host.libvirt.domain_xml import parse
from amp_nova.model.allocation import Change, Step
from amp_nova.model.bandwidth import Bandwidth
from tests.fakehost import Node, nova_xml, put, resource

NAME = "instance-00000001"
R = resource(NAME)
HALF = {"amp:pref_core": "0.5"}
LIMIT = Bandwidth(5000, 20000)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(request, tmp_path, monkeypatch):
    """A fake node of either cgroup version."""
    return Node(tmp_path, monkeypatch, request.param)


def change(index=0, *steps, name=NAME):
    """A change of one vCPU: by default a limit."""
    return Change((resource(name), index), steps or (Step(bandwidth=LIMIT),))


def test_changes_are_carried_out(node):
    """Affinity and limit of a vCPU are set, and there is no failure to tell."""
    node.start()
    node.see()

    failures = node.node.apply([change(1, Step(pcpus=frozenset({3})), Step(bandwidth=LIMIT))])

    assert failures == {}
    assert node.host.limit(index=1) == "5000 20000"
    assert node.see().vcpus[1].pcpus == {3}


def test_domain_that_vanishes_before_it_is_changed_is_no_failure(node):
    """Shutting an instance down between observing and acting is nobody's fault."""
    node.start()
    node.see()
    node.host.stop()

    assert node.node.apply([change(0), change(1)]) == {}


def test_vcpu_that_vanishes_does_not_keep_the_others_from_their_changes(node):
    """An unplugged vCPU is no failure, and the vCPUs beside it get what was decided."""
    node.start()
    node.see()
    node.host.unplug(NAME, 0)

    assert node.node.apply([change(0), change(1)]) == {}
    assert node.host.limit(index=1) == "5000 20000"


def test_vcpus_are_looked_for_again_after_one_vanished(node):
    """What went between observing and acting is looked at anew in the next cycle."""
    node.start()
    node.see()
    node.host.unplug(NAME, 0)
    node.node.apply([change(0)])
    node.host.plug(NAME, 0)

    assert [v.index for v in node.see().vcpus] == [0, 1]


def test_vcpu_that_vanishes_while_others_wait_for_a_period_is_no_failure(node):
    """The others that wait for their period to begin get their new limit all the same."""
    node.start()
    node.see()
    node.node.apply([change(0), change(1)])
    node.host.unplug(NAME, 0)
    less = Step(bandwidth=Bandwidth(4000, 20000))

    assert node.node.apply([change(0, less), change(1, less)]) == {}
    assert node.host.limit(index=1) == "4000 20000"


def test_vcpu_is_looked_after_as_soon_as_it_has_its_group(node):
    """A vCPU that libvirt moves to its group a moment late is read in the next cycle."""
    node.start(vcpus=1)
    node.libvirt.define(vcpus=2)
    tid = node.host.plug(NAME, 1, group="emulator")
    assert node.see().failure
    node.host.group(NAME, "vcpu1")
    where = node.host.root / f"proc/4000/task/{tid}/cgroup"
    where.write_text(where.read_text().replace("emulator", "vcpu1"))

    seen = node.see()

    assert (seen.failure, [v.index for v in seen.vcpus]) == (None, [0, 1])


def test_unknown_vcpu_is_no_failure(node):
    """A change for something that was never seen does nothing."""
    assert node.node.apply([change(5)]) == {}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.EROFS, "read_only"),
        (errno.EACCES, "read_only"),
        (errno.EPERM, "read_only"),
        (errno.EINVAL, "refused"),
        (errno.EBUSY, "refused"),
    ],
)
def test_kernels_refusal_is_counted_and_told(node, code, reason):
    """A read-only cgroup is told from a value that the kernel refuses, in the kernel's words."""
    node.start()
    node.see()
    node.kernel.refuse = {"cpu.max": code, "cpu.cfs_quota_us": code, "cpu.cfs_period_us": code}

    failures = node.node.apply([change()])

    assert failures[R, 0].reason == reason
    assert failures[R, 0].message == f"vCPU 0 cannot be changed: {os.strerror(code)}"


def test_refused_affinity_is_told(node):
    """An affinity that the kernel refuses is a failure, too."""
    node.start()
    node.see()

    failures = node.node.apply([change(0, Step(pcpus=frozenset({77})))])

    assert failures[R, 0].message == "vCPU 0 cannot be changed: Invalid argument"


def test_read_back_that_differs_is_refused(node):
    """A limit that did not arrive is a failure of that vCPU alone."""
    node.start()
    node.see()
    node.kernel.twist = {"cpu.max": "9000 20000\n", "cpu.cfs_quota_us": "9000\n"}

    failures = node.node.apply([change()])

    assert failures[R, 0].reason == "refused"
    assert "9000/20000 us after the limit 5000/20000 us was set" in failures[R, 0].message


def test_release_leaves_nothing(node):
    """Released: no limit, and every pCPU that libvirt leaves the instance."""
    node.start(specs=HALF, cpuset="0-3")
    Loop(node.node, node.node).cycle()
    assert node.see().vcpus[0].pcpus == {0, 1}

    left = node.node.release(R)

    assert left == ()
    assert [(v.bandwidth, v.pcpus) for v in node.see().vcpus] == [(None, {0, 1, 2, 3})] * 2


def test_release_reports_what_is_left(node):
    """What cannot be put back is a sentence that names the domain."""
    node.start(specs=HALF)
    Loop(node.node, node.node).cycle()
    node.kernel.refuse = {"cpu.max": errno.EROFS, "cpu.cfs_quota_us": errno.EROFS}

    left = node.node.release(R)

    assert left == tuple(
        f"{NAME}: vCPU {i} cannot be changed: Read-only file system" for i in range(2)
    )


def test_release_of_what_cannot_be_read_is_a_leftover(node):
    """Nothing is claimed of an instance whose threads or definition cannot be read."""
    node.start()
    (node.host.run_path / f"{NAME}.pid").unlink()
    xml = parse(nova_xml("second"))
    broken = replace(xml, domain=replace(xml.domain, problem="garbage"))
    node.libvirt.known[resource("second")] = broken

    assert node.node.release(R)[0].startswith(f"{NAME}: its threads cannot be read")
    assert node.node.release(resource("second")) == ("second: garbage",)


def test_release_leaves_libvirts_own_quota(node):
    """A quota that the definition asks for is not ours to take off; an affinity of ours is."""
    node.start(cputune="<quota>50000</quota><period>100000</period>", cpuset="0-3")
    quota = ("cpu.max", "50000 100000") if node.host.version == 2 else ("cpu.cfs_quota_us", 50000)
    put(node.host.group(NAME, "vcpu0") / quota[0], quota[1])

    assert node.node.release(R) == ()
    assert node.kernel.written == []
    assert node.see().vcpus[0].pcpus == {0, 1, 2, 3}
    assert node.see().vcpus[0].bandwidth == Bandwidth(50000, 100000)


def test_release_tries_everything(node):
    """An affinity that cannot be put back does not keep the limit in force."""
    node.start(specs=HALF, cpuset="0-3")
    Loop(node.node, node.node).cycle()
    node.kernel.refuse = {"affinity": errno.EINVAL}

    left = node.node.release(R)

    assert len(left) == 2
    assert [v.bandwidth for v in node.see().vcpus] == [None, None]


def test_release_of_an_instance_that_left_does_nothing(node):
    """An instance that is not here has nothing to put back."""
    assert node.node.release(R) == ()
