# SPDX-License-Identifier: Apache-2.0
"""A FAKE compute node: /proc, cgroups (version 1 or 2) and pid files below a folder.

Regular files stand in for the kernel's. ``Kernel`` plays what makes kernel files different: a write
replaces the content and may be refused, a descriptor fails once the process or group it belongs to
is gone, and threads that do not exist have an affinity all the same.
"""

import contextlib
import errno
import os
import uuid as uuids
import xml.sax.saxutils as escape
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from amp_nova.host.libvirt.domain_xml import parse
from amp_nova.host.machine import OnlineTopology
from amp_nova.kernel import cgroups
from amp_nova.model.topology import CoreType, PCpu, Topology

NOVA = "http://openstack.org/xmlns/libvirt/nova/1.1"
MOUNTS = {
    1: ("cgroup", "sys/fs/cgroup/cpu,cpuacct", "rw,cpu,cpuacct"),
    2: ("cgroup2", "sys/fs/cgroup", "rw"),
}

WEIGHTS = {1: "cpu.shares", 2: "cpu.weight"}
DEFAULT_WEIGHTS = {1: 1024, 2: 100}
STATS = {
    1: "nr_periods 1\nnr_throttled 1\nthrottled_time 3000",
    2: "usage_usec 9\nnr_throttled 0\nthrottled_usec 3",
}

TIDS_FROM = 1 << 22
"""Above the highest thread ID that Linux gives (PID_MAX_LIMIT): a fake thread is no real one."""


def resource(name):
    """The UUID that a fake domain of this name has."""
    return str(uuids.uuid5(uuids.NAMESPACE_DNS, name))


def nova_xml(name="instance-00000001", vcpus=2, specs=None, cpuset="", cputune="", **more):
    """A domain as Nova 34 defines it; ``more``: ``kind``, ``current``, ``metadata``."""
    cpuset = f' cpuset="{cpuset}"' if cpuset else ""
    current = f' current="{more["current"]}"' if "current" in more else ""
    tune = f"<cputune>{cputune}</cputune>" if cputune else ""
    metadata = more.get("metadata", None if specs is None else nova_metadata(specs))
    return f"""<domain type='{more.get("kind", "kvm")}' id='7'>
  <name>{escape.escape(name)}</name>
  <uuid>{more.get("uuid", resource(name))}</uuid>
  <metadata>{metadata or ""}</metadata>
  <memory unit='KiB'>1048576</memory>
  <vcpu placement='static'{cpuset}{current}>{vcpus}</vcpu>
  <iothreads>1</iothreads>
  {tune}
  <os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os>
</domain>"""


def nova_metadata(specs, namespace=NOVA):
    """Nova's own part of a domain's metadata, with its flavor's extra specs."""
    extra = "".join(
        f"<nova:extraSpec name={escape.quoteattr(k)}>{escape.escape(v)}</nova:extraSpec>"
        for k, v in specs.items()
    )
    return f"""<nova:instance xmlns:nova="{namespace}">
      <nova:package version="34.0.0"/>
      <nova:name>web &amp; shop</nova:name>
      <nova:creationTime>2026-11-20 17:52:30</nova:creationTime>
      <nova:flavor name="m1.half" id="71a28349-0d3e-4a6f-8a3c-2f4f3a9f6a10">
        <nova:memory>1024</nova:memory>
        <nova:vcpus>2</nova:vcpus>
        <nova:extraSpecs>{extra}</nova:extraSpecs>
      </nova:flavor>
      <nova:owner>
        <nova:user uuid="0f5c">admin</nova:user>
        <nova:project uuid="5ac0ffee">demo</nova:project>
      </nova:owner>
      <nova:ports/>
    </nova:instance>"""


def topology(slow=(0, 1), fast=(2, 3), isolated=()):
    """A machine of slow cores and fast cores, twice as fast."""
    types = (CoreType("slow", 1.0, "configured"), CoreType("fast", 2.0, "configured"))
    pcpus = [PCpu(i, "slow", isolated=i in isolated) for i in slow]
    pcpus += [PCpu(i, "fast", isolated=i in isolated) for i in fast]
    return Topology(types, tuple(sorted(pcpus, key=lambda p: p.id)), "slow", "configuration")


def descriptors():
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


@dataclass
class Kernel:
    """A FAKE of what the kernel answers; ``install`` puts it in the place of the real one."""

    pcpus: frozenset = frozenset(range(8))
    affinity: dict = field(default_factory=dict)
    refuse: dict = field(default_factory=dict)
    """Errno by name of the cgroup file that cannot be written, or ``"affinity"``."""
    twist: dict = field(default_factory=dict)
    """What a cgroup file holds after a write, whatever was written, by its name."""
    ratio_max: float = float("inf")
    """The share that the parent group has: no child may have more."""
    written: list = field(default_factory=list)
    """Name and content of every cgroup file that was written."""
    ratios: list = field(default_factory=list)
    """The share in force after each write."""
    writes: int = 0
    """Attempts to write a cgroup file or an affinity."""

    def install(self, monkeypatch):
        """Answer in the kernel's place until the test ends."""
        self._pread, self._getaffinity = os.pread, os.sched_getaffinity
        monkeypatch.setattr(cgroups, "_write", self.write)
        monkeypatch.setattr(os, "pread", self.pread)
        monkeypatch.setattr(os, "sched_getaffinity", self.get)
        monkeypatch.setattr(os, "sched_setaffinity", self.set)
        return self

    def pread(self, fd, count, offset):
        """A descriptor of a group that is gone fails with ENODEV, one of a process with ESRCH."""
        if os.fstat(fd).st_nlink == 0:
            of_process = "/proc/" in os.readlink(f"/proc/self/fd/{fd}")
            code = errno.ESRCH if of_process else errno.ENODEV
            raise OSError(code, os.strerror(code))
        return self._pread(fd, count, offset)

    def get(self, tid):
        """The affinity of a fake thread, or of a real one."""
        if tid == 0:
            return self._getaffinity(0)
        if tid not in self.affinity:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        return set(self.affinity[tid])

    def set(self, tid, pcpus):
        """Only pCPUs that are online count, and there must be one."""
        self.writes += 1
        self.get(tid)
        code = self.refuse.get("affinity") or (0 if set(pcpus) & self.pcpus else errno.EINVAL)
        if code:
            raise OSError(code, os.strerror(code))
        self.affinity[tid] = set(self.twist.get("affinity", set(pcpus) & self.pcpus))

    def write(self, path, value, kept=None):
        """Write a cgroup file as the kernel would."""
        self.writes += 1
        path = Path(path)
        old = path.read_text()
        code = self.refuse.get(path.name)
        if code:
            raise OSError(code, os.strerror(code))
        if path.name == "cpu.max":
            quota, period = [*value.split(), old.split()[1]][:2]
            new = f"{quota} {period}\n"
        else:
            new = f"{value}\n"
        path.write_text(new)
        if path.name not in WEIGHTS.values():
            try:
                self.ratios.append(self._checked(path.parent))
            except OSError:
                path.write_text(old)
                raise
        self.written.append((path.name, value))
        if path.name in self.twist:
            path.write_text(self.twist[path.name])

    def _checked(self, group):
        quota, period = limit(group)
        short = quota not in ("max", "-1") and int(quota) < 1000
        ratio = float("inf") if quota in ("max", "-1") else int(quota) / int(period)
        beyond = self.ratio_max < ratio < float("inf")
        if short or beyond or not 1000 <= int(period) <= 1_000_000:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return ratio


def limit(group):
    """Quota and period in a fake group, as text."""
    if (group / "cpu.max").exists():
        text = ""
        while not text:  # unlike the kernel's, this file is empty while it is written
            text = (group / "cpu.max").read_text()
        return text.split()
    return [(group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")]


def put_limit(group, version, quota, period):
    """Write quota and period to a fake group; a quota of ``"max"`` is none."""
    if version == 2:
        put(group / "cpu.max", f"{quota} {period}")
    else:
        put(group / "cpu.cfs_quota_us", -1 if quota == "max" else quota)
        put(group / "cpu.cfs_period_us", period)


class FakeFiles:
    """Files of a FAKE node below ``root``. ``prefix`` is what stands before libvirt's groups."""

    def __init__(self, root, version=2, prefix="", hybrid=False):
        self.root, self.version, self.prefix = root, version, prefix
        self.run_path = root / "run/libvirt/qemu"
        self.run_path.mkdir(parents=True)
        kind, where, options = MOUNTS[version]
        lines = [f"tmpfs /run tmpfs rw 0 0\n{kind} /{where} {kind} {options} 0 0"]
        if version == 1:
            lines.append("cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0")
        if hybrid:
            lines.append("cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0")
        put(root / "proc/self/mounts", "\n".join(lines))
        self.hybrid = hybrid
        self.mount = root / where
        self.kernel = Kernel()
        self._next_tid = TIDS_FROM
        self._began = {}

    def start(self, name="instance-00000001", vcpus=2, pid=4000, began=77, **said):
        """A QEMU process with its vCPU threads; ``comm`` is a pattern for their names."""
        put(self.run_path / f"{name}.pid", pid, end="")
        put(self.root / f"proc/{pid}/stat", stat(pid, "qemu (odd) name", began))
        self._began[pid] = began
        self.thread(pid, "qemu-system-x86", self.group(name, "emulator"))
        for index in range(vcpus):
            self.plug(name, index, pid, **said)
        return pid

    def plug(self, name, index, pid=4000, comm="CPU {}/KVM", group="vcpu{}", run_ns=1000):
        """One more vCPU thread in a group of its own (``group`` is a pattern for its name)."""
        folder = self.group(name, group.format(index))
        return self.thread(pid, comm.format(index), folder, run_ns)

    def group(self, name, part):
        """The CPU group of a part of a domain, made when needed."""
        folder = self.mount / self.prefix.strip("/") / f"machine/qemu-1-{name}.libvirt-qemu" / part
        if not folder.exists():
            if not folder.parent.exists():
                put(folder.parent / WEIGHTS[self.version], DEFAULT_WEIGHTS[self.version])
            put_limit(folder, self.version, "max", 100000)
            put(folder / "cpu.stat", STATS[self.version])
        return folder

    def thread(self, pid, comm, folder, run_ns=1000):
        """One thread of a process; its id."""
        tid = self._next_tid = self._next_tid + 1
        task = self.root / f"proc/{pid}/task/{tid}"
        put(task / "comm", comm)
        put(task / "stat", stat(tid, comm, self._began.get(pid, 77)))
        put(task / "schedstat", f"{run_ns} 500 7")
        inside = "/" + str(folder.relative_to(self.mount))
        lines = [f"0::{inside}"]
        if self.version == 1:
            lines = ["9:name=systemd:/", "5:memory:/machine", f"2:cpu,cpuacct:{inside}"]
            lines.append(f"3:cpuset:{inside}")
            lines += ["0::/elsewhere"] if self.hybrid else []
        put(task / "cgroup", "\n".join(lines))
        self.kernel.affinity[tid] = set(self.kernel.pcpus)
        return tid

    def tid(self, index, pid=4000):
        """The thread id of a vCPU."""
        for task in (self.root / f"proc/{pid}/task").iterdir():
            if (task / "comm").read_text().startswith(f"CPU {index}/"):
                return int(task.name)
        raise LookupError(index)

    def reuse(self, index, pid=4000, began=99):
        """The thread of a vCPU ends and another one of the process gets its id at once."""
        tid = self.tid(index, pid)
        put(self.root / f"proc/{pid}/task/{tid}/stat", stat(tid, "worker", began))

    def unplug(self, name, index, pid=4000):
        """A vCPU's thread ends and its group is removed."""
        tid = self.tid(index, pid)
        remove(self.group(name, f"vcpu{index}"))
        remove(self.root / f"proc/{pid}/task/{tid}")
        del self.kernel.affinity[tid]

    def stop(self, name="instance-00000001", pid=4000):
        """The process ends, and libvirt removes its groups and its pid file."""
        for task in (self.root / f"proc/{pid}/task").iterdir():
            self.kernel.affinity.pop(int(task.name), None)
        remove(self.root / f"proc/{pid}")
        remove(self.group(name, "emulator").parent)
        (self.run_path / f"{name}.pid").unlink()

    def weight(self, name="instance-00000001"):
        """The domain's ``cpu.weight`` file, in version 1 ``cpu.shares``."""
        return self.group(name, "emulator").parent / WEIGHTS[self.version]

    def limit(self, name="instance-00000001", index=0):
        """What limits a vCPU now, as the kernel's files say it."""
        return " ".join(limit(self.group(name, f"vcpu{index}")))

    def set_limit(self, quota, period, name="instance-00000001", index=0):
        """Limit a vCPU as somebody else would; the quota may be ``"max"``."""
        put_limit(self.group(name, f"vcpu{index}"), self.version, quota, period)

    def confine(self, group, cpus):
        """What the kernel says that the cpuset of a CPU group, or of one above it, leaves."""
        if self.version == 2:
            put(group / "cpuset.cpus.effective", cpus)
        else:
            inside = group.relative_to(self.mount)
            put(self.root / "sys/fs/cgroup/cpuset" / inside / "cpuset.effective_cpus", cpus)

    def schedule(self, policy, index=0, pid=4000):
        """Give a vCPU's thread another scheduling policy, as ``chrt`` does."""
        tid = self.tid(index, pid)
        text = stat(tid, "CPU 9/) 1 2", self._began[pid], policy)
        put(self.root / f"proc/{pid}/task/{tid}/stat", text)

    def burst(self, name="instance-00000001", index=0):
        """The file with the burst of a vCPU."""
        name_of_file = {1: "cpu.cfs_burst_us", 2: "cpu.max.burst"}[self.version]
        return self.group(name, f"vcpu{index}") / name_of_file


def stat(number, comm, began, policy=0):
    """The ``stat`` file of a process or thread that started at ``began`` ticks since boot.

    It ran last on pCPU 3; ``policy``: that of its scheduling class.
    """
    fields = ["S", *["0"] * 18, str(began), *["0"] * 16, "3", "0", str(policy), *["0"] * 11]
    return f"{number} ({comm}) {' '.join(fields)}"


def put(path, value, end="\n"):
    """Write a file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}{end}")


def remove(path):
    """Remove a folder with all that it holds."""
    for child in path.iterdir():
        remove(child) if child.is_dir() else child.unlink()
    path.rmdir()


class FakeLibvirt:
    """A FAKE of ``Hypervisor``: the domains it was told."""

    available = True
    writable = False
    calls = 0

    def __init__(self):
        self.known = {}
        self.connection = self

    def hostname(self):
        """The host's name, as Nova knows it."""
        return "host1"

    def domains(self):
        """What is told of every domain."""
        return dict(self.known)

    def inactive(self):
        """It has none."""
        return {}

    def define(self, name="instance-00000001", **said):
        """Tell a domain."""
        self.known[resource(name)] = parse(nova_xml(name, **said))

    def forget(self, name="instance-00000001"):
        """Tell it no more."""
        del self.known[resource(name)]


class FakeLock:
    """A FAKE of the cycle lock, which nobody else holds; how often it was ``taken``."""

    taken = 0

    @contextlib.contextmanager
    def __call__(self, _wait_s):
        """Take it."""
        self.taken += 1
        yield


class Node:
    """A host, what libvirt says of it, and the code under test.

    ``paused``: instances that are paused, by UUID, and why; ``lock``: the cycle lock.
    """

    def __init__(self, root, monkeypatch, version=2, rescan_s=10.0, counters=None, lock=None):
        pytest.importorskip("libvirt", reason="libvirt-python is not installed")
        from amp_nova.host.sensor import HostPaths, LibvirtSensor  # only where libvirt is
        from amp_nova.host.writer import WriteConditions, Writer

        self.host = FakeFiles(root, version)
        self.kernel = self.host.kernel.install(monkeypatch)
        self.libvirt = FakeLibvirt()
        self.topology, self.online, self.loads = topology(), frozenset(range(4)), 0
        self.paused = {}
        self.lock = lock or FakeLock()
        self.sensor = LibvirtSensor(
            self.libvirt,
            OnlineTopology(self._load, lambda: self.online),
            HostPaths(self.host.run_path, root, rescan_s),
            counters,
            lambda: self.paused,
        )
        self.writer = Writer(self.sensor, WriteConditions(lambda: self.paused, self.lock))

    def _load(self):
        self.loads += 1
        if isinstance(self.topology, Exception):
            raise self.topology
        return self.topology

    def start(self, name="instance-00000001", vcpus=2, pid=4000, began=77, **said):
        """Start a domain that libvirt knows."""
        self.host.start(name, vcpus, pid, began)
        self.libvirt.define(name, vcpus=vcpus, **said)

    def see(self, name="instance-00000001"):
        """What is observed of one domain."""
        seen = {d.domain.name: d for d in self.sensor.observe().domains}
        return seen[name]

    def release(self, name="instance-00000001"):
        """Release an instance as it is now; what is left over."""
        return self.writer.undo(self.see(name))[1]


def vanish(path):
    """The file is gone."""
    path.unlink()


def without_end(path):
    """Reading it never ends."""
    path.unlink()
    path.symlink_to("/dev/zero")


SPOIL = {
    "odd bytes": lambda path: path.write_bytes(b"\xff\0) \n:\xfe\n\n"),
    "empty": lambda path: path.write_bytes(b""),
    "huge": lambda path: path.write_bytes(b"9 " * (3 << 20)),
    "vanished": vanish,
    "endless": without_end,
}
"""What may happen to any file of the kernel's, by name."""
