# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for guests: ordinary processes in cgroups like libvirt's, for ``amp-nova selftest``.

libvirt's test driver says that they exist, so the agent treats them as it treats guests.
"""

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

import libvirt

from amp_nova.exceptions import ConfigInvalid
from amp_nova.kernel import files
from amp_nova.kernel.cgroups import Mounts, mounts
from amp_nova.kernel.threads import Thread

# It counts rounds of work into a file, and ends with whoever started it, whose pipe it reads.
PROGRAM = """import os, select, sys
rounds, out = 0, int(sys.argv[1])
open("/proc/self/comm", "w").write("CPU 0/KVM")
print(flush=True)
while not select.select([0], [], [], 0)[0]:
    for _ in range(20000): pass
    rounds += 1
    os.pwrite(out, rounds.to_bytes(8, "little"), 0)
"""
DEFINITION = """<domain type="test">
<name>{name}</name><uuid>{resource}</uuid><memory>1024</memory>
<vcpu cpuset="{cpus}">1</vcpu><os><type>hvm</type></os>
<metadata><nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
<nova:package version="34.0.0"/><nova:flavor name="selftest"><nova:extraSpecs>{specs}
</nova:extraSpecs></nova:flavor></nova:instance></metadata></domain>"""


class StandIn:
    """A process of one vCPU that always works, in a group of its own."""

    def __init__(self, name: str, mounted: Mounts, run_path: Path) -> None:
        """``run_path``: where the agent looks for the process IDs of guests.

        Raises ``ConfigInvalid`` if there can be no group for it.
        """
        self.resource = str(uuid.uuid4())
        self.name = f"selftest-{name}"
        self.v1 = "cpu" in mounted
        mount = mounted.get("cpu") or mounted.get("")
        if mount is None:
            raise ConfigInvalid("no cgroups are mounted: mount them, or run this on the host")
        self.domain = mount.path / f"amp-nova-{os.getpid()}-{name}"
        self.group = self.domain / ("vcpu0" if self.v1 else "libvirt/vcpu0")
        self._counted = os.memfd_create(self.name)
        self._process = subprocess.Popen(
            [sys.executable, "-SE", "-c", PROGRAM, str(self._counted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._counted],
        )
        try:
            assert self._process.stdout is not None
            self._process.stdout.readline()
            self._enter(mount.path)
            pid = self._process.pid
            self._thread = Thread(f"/proc/{pid}/task/{pid}")
            (run_path / f"{self.name}.pid").write_text(f"{pid}")
        except OSError as exc:
            self.close()
            raise ConfigInvalid(
                f"no cgroup like libvirt's can be made ({exc}): run this as root, on the host"
            ) from exc

    def _enter(self, tree: Path) -> None:
        self.group.mkdir(parents=True)
        for folder in [] if self.v1 else [tree, *reversed(self.group.relative_to(tree).parents)]:
            if folder != Path():
                (tree / folder / "cgroup.subtree_control").write_text("+cpu")
        (self.group / "cgroup.procs").write_text(f"{self._process.pid}")

    def definition(self, cpus: str, specs: Mapping[str, str]) -> str:
        """The definition of its domain on these pCPUs."""
        extra = "".join(
            f"<nova:extraSpec name={quoteattr(key)}>{value}</nova:extraSpec>"
            for key, value in specs.items()
        )
        return DEFINITION.format(name=self.name, resource=self.resource, cpus=cpus, specs=extra)

    def pin(self, pcpu: int) -> None:
        """Run on this pCPU, until the agent decides."""
        self._thread.set_affinity(frozenset({pcpu}))

    def used(self) -> tuple[float, float, float, int]:
        """The time now, how long it ran and waited for others, in seconds, and its rounds."""
        ran_ns, waited_ns, _ = self._thread.schedstat().split()
        rounds = int.from_bytes(os.pread(self._counted, 8, 0), "little")
        return time.monotonic(), int(ran_ns) / 1e9, int(waited_ns) / 1e9, rounds

    def quota_cores(self) -> float | None:
        """The limit in force."""
        if self.v1:
            names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
            quota, period = (files.text(self.group / name).strip() for name in names)
        else:
            quota, period = files.text(self.group / "cpu.max").split()
        return None if quota in ("max", "-1") else int(quota) / int(period)

    def forget_limit(self) -> None:
        """Remove the limit, as somebody else could."""
        name, text = ("cpu.cfs_quota_us", "-1") if self.v1 else ("cpu.max", "max")
        (self.group / name).write_text(text)

    def close(self) -> None:
        """End the process and remove its group."""
        self._process.kill()
        self._process.communicate()
        os.close(self._counted)
        for folder in (self.group, *self.group.parents):
            if not folder.is_relative_to(self.domain):
                break
            until_s = time.monotonic() + 2.0
            while folder.exists() and time.monotonic() < until_s:  # the process leaves it first
                with contextlib.suppress(OSError):
                    folder.rmdir()


class StandIns:
    """Stand-ins that libvirt's test driver in this process (``test:///default``) knows."""

    def __init__(self, run_path: Path) -> None:
        """``run_path``: as for ``StandIn``."""
        libvirt.registerErrorHandler(lambda _context, _error: None, None)
        self._run_path, self._mounted = run_path, mounts(Path("/"))
        self._stands: list[StandIn] = []
        self._conn = libvirt.open("test:///default")
        for domain in self._conn.listAllDomains():  # one that the driver begins with
            domain.destroy()
            domain.undefine()

    def add(self, name: str) -> StandIn:
        """A new one, of which libvirt does not know yet; as for ``StandIn``."""
        self._stands.append(StandIn(name, self._mounted, self._run_path))
        return self._stands[-1]

    def start(self, stand: StandIn, pcpu: int, specs: Mapping[str, str]) -> None:
        """Start its domain on this pCPU, or again on another."""
        with contextlib.suppress(libvirt.libvirtError):
            self._conn.lookupByName(stand.name).destroy()
        self._conn.createXML(stand.definition(str(pcpu), specs), 0)

    def close(self) -> None:
        """End all of them."""
        while self._stands:
            self._stands.pop().close()
