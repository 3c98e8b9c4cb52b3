# SPDX-License-Identifier: Apache-2.0
"""I/O threads and interfaces of a fake node: which are read, their limits, and which move."""

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.host.io import IoHost, line_rate_bytes_s
from amp_nova.host.libvirt.domain_xml import parse
from amp_nova.kernel.threads import THREADS_MAX
from tests.support.fakehost import (
    FakeFiles,
    FakeLibvirt,
    descriptors,
    nova_xml,
    put,
    resource,
    stat,
    topology,
)

NAME = "instance-00000001"
NIC = '<devices><interface type="{}"><target dev="tap0"/>{}</interface></devices>'
LIMITS = '<bandwidth><inbound average="1000"/><outbound average="500" peak="900"/></bandwidth>'


class IoNode:
    """A fake node with one domain, and the code under test."""

    def __init__(self, root, monkeypatch, version=2):
        self.host = FakeFiles(root, version)
        self.kernel = self.host.kernel.install(monkeypatch)
        self.kernel.pcpus = frozenset(range(4))
        self.root, self.libvirt = root, FakeLibvirt()
        self.io = IoHost(self.libvirt, self.host.run_path, root)
        self.host.start(NAME, vcpus=1)

    def define(self, nic="", **said):
        """Define the domain in libvirt; ``nic`` is the XML of its devices."""
        text = nova_xml(NAME, vcpus=1, **said).replace("</domain>", f"{nic}</domain>")
        self.libvirt.known[resource(NAME)] = parse(text)

    def thread(self, comm, group="emulator"):
        return self.host.thread(4000, comm, self.host.group(NAME, group))

    def see(self):
        (reading,) = self.io.read(topology())
        return reading

    def kinds(self):
        return sorted((t.kind, sorted(t.home)) for t in self.see().threads)


@pytest.fixture(params=[1, 2])
def node(request, tmp_path, monkeypatch):
    made = IoNode(tmp_path, monkeypatch, request.param)
    made.define()
    return made


def count(root, received, sent, device="tap0"):
    put(root / f"sys/class/net/{device}/statistics/rx_bytes", received)
    put(root / f"sys/class/net/{device}/statistics/tx_bytes", sent)


ALL = [0, 1, 2, 3]


def test_all_threads_but_vcpus_are_io_threads(node):
    """Emulator and workers, iothreads, vhost workers; migration has its own kind."""
    for comm in ("IO iothread1", "IO mon_iothread", "worker", "vhost-4000", "live_migration"):
        node.thread(comm)

    assert node.kinds() == [
        *[("emulator", ALL)] * 3,
        ("iothread", ALL),
        ("migration", ALL),
        ("vhost", ALL),
    ]


def test_vhost_workers_of_older_kernels_are_found_in_the_domains_group(node):
    """Before Linux 6.4 they are kernel threads; other processes in that group are ignored."""
    group = node.host.group(NAME, "emulator")
    of_process = node.root / "proc/4000/cgroup"
    texts = [p.read_text() for p in (node.root / "proc/4000/task").glob("*/cgroup")]
    of_process.write_text(next(t for t in texts if "emulator" in t))
    inside = []
    for number, comm in ((6001, "vhost-4000"), (6002, "swtpm")):
        put(node.root / f"proc/{number}/comm", comm)
        put(node.root / f"proc/{number}/schedstat", "77 0 1")
        put(node.root / f"proc/{number}/stat", stat(number, comm, 77))
        node.kernel.affinity[number] = {0, 1, 2, 3}
        inside.append(number)
    names = "tasks" if node.host.version == 1 else "cgroup.threads"
    put(group / names, "\n".join(str(n) for n in [*inside, 4001]))

    assert [t.tid for t in node.see().threads if t.kind == "vhost"] == [6001]
    assert 6002 not in {t.tid for t in node.see().threads}


def test_home_of_a_thread_follows_the_definition(node):
    """emulatorpin or iothreadpin, otherwise the domain's cpuset; isolated pCPUs need a pin."""
    (reading,) = node.io.read(topology(isolated=(3,)))
    assert reading.threads[0].home == {0, 1, 2}

    node.thread("IO iothread1")
    node.thread("IO iothread2")
    tune = '<emulatorpin cpuset="0-2"/><iothreadpin iothread="2" cpuset="3"/>'
    node.define(cpuset="1-3", cputune=tune)

    assert node.kinds() == [("emulator", [0, 1, 2]), ("iothread", [1, 2, 3]), ("iothread", [3])]


def test_threads_take_no_descriptors(node):
    """A QEMU may start thousands, of which some are looked at."""
    node.see()
    before = descriptors()
    for _ in range(THREADS_MAX + 9):
        node.thread("worker")

    assert len(node.see().threads) == THREADS_MAX - 1  # the vCPU is not one of them
    assert descriptors() == before


def test_new_vcpu_thread_is_never_moved(node):
    """The thread of a plugged vCPU has the name of its process for a moment."""
    tid = node.thread("qemu-system-x86")
    assert tid in {t.tid for t in node.see().threads}
    put(node.root / f"proc/4000/task/{tid}/comm", "CPU 1/KVM")

    assert node.io.move(resource(NAME), {tid: frozenset({0})}) is None
    assert node.kernel.affinity[tid] != {0}
    assert tid not in {t.tid for t in node.see().threads}


def test_bytes_are_counted_as_the_guest_sees_them(node):
    """What the host receives from a tap was sent by the guest; macvtap counts as the guest."""
    count(node.root, received=700, sent=30)
    node.define(NIC.format("bridge", LIMITS))
    (nic,) = node.see().interfaces
    assert (nic.in_bytes, nic.out_bytes) == (30, 700)
    assert (nic.in_limit_bytes_s, nic.out_limit_bytes_s) == (1_000_000, 500_000)

    node.define(NIC.format("direct", ""))
    (nic,) = node.see().interfaces
    assert (nic.in_bytes, nic.out_bytes) == (700, 30)


def test_line_rate_is_that_of_the_fastest_physical_link(node):
    """The speed of a tap is a constant; a link that is down has none."""
    count(node.root, 1, 1)
    put(node.root / "sys/class/net/tap0/speed", 10000)
    node.define(NIC.format("bridge", ""))
    assert node.see().interfaces[0].in_limit_bytes_s is None

    for name, speed in (("eth0", 25000), ("eth1", -1), ("eth2", 1000)):
        put(node.root / f"sys/class/net/{name}/device/vendor", "x")
        put(node.root / f"sys/class/net/{name}/speed", speed)
    assert line_rate_bytes_s(node.root) == 25e9 / 8


@pytest.mark.parametrize("kind", ["hostdev", "vhostuser", "vdpa"])
def test_interfaces_served_elsewhere_are_left_out(node, kind):
    """The device or another process carries their traffic."""
    node.define(NIC.format(kind, ""))
    assert node.see().interfaces == ()


def test_malformed_io_definition_affects_io_only(node):
    """The domain's booking is still read."""
    node.define(cputune='<emulatorpin cpuset="x"/>')
    reading = node.see()
    assert "cannot be read" in reading.failure
    assert node.libvirt.known[resource(NAME)].domain.problem is None


def test_later_threads_and_processes_are_found_by_the_next_read(node):
    """However long nothing has changed."""
    for _ in range(3):
        node.see()
    tid = node.thread("IO iothread1")
    assert tid in {t.tid for t in node.see().threads}

    life = node.see().incarnation
    node.host.stop(NAME)
    node.host.start(NAME, vcpus=1, pid=4100, began=99)
    again = node.see()
    assert again.failure is None
    assert again.incarnation != life
    assert tid not in {t.tid for t in again.threads}


def test_threads_move_and_refusals_are_reported(node):
    """A failure has a reason; a thread that has ended is not a failure."""
    tid = node.thread("IO iothread1")
    node.see()
    assert node.io.move(resource(NAME), {tid: frozenset({1}), 99: frozenset({1})}) is None
    assert node.kernel.affinity[tid] == {1}

    node.kernel.twist["affinity"] = {0}
    assert "extend its cpuset cgroup" in node.io.move(resource(NAME), {tid: frozenset({1})})
    node.kernel.refuse["affinity"] = 1
    assert "cannot be moved" in node.io.move(resource(NAME), {tid: frozenset({1})})


def test_moved_threads_are_found_with_their_home(node):
    """The slow part of the home was set by the agent, anything else by something else."""
    tid = node.thread("IO iothread1")
    node.see()
    assert node.io.moved(topology()) == {}
    node.kernel.affinity[tid] = {0, 1}
    assert node.io.moved(topology()) == {resource(NAME): {tid: frozenset(ALL)}}
    node.kernel.affinity[tid] = {1, 2}
    assert node.io.moved(topology()) == {}
