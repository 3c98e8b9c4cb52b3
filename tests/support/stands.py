# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for domains: ordinary processes in real cgroups, that libvirt's test driver knows.

What an agent writes there is real: limits, affinities and CPU weights of real threads. Nothing
computes and nothing is emulated, so hundreds of agents can be killed over them in minutes.
"""

import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from amp_nova.guard import lease
from amp_nova.host.vcpu_threads import RUN_PATH
from tests.support.fakehost import nova_xml, resource
from tests.support.lab import FAST, SLOW, Agent, until

CPU = Path("/sys/fs/cgroup/cpu")
RIGHT = {frozenset({FAST}): 0.5, frozenset({SLOW}): 1.0}
"""What a reference core is on a core type."""
BOOKED, BEST_EFFORT, DEFAULT = 5120, 51, 1024
"""CPU weights of stand-ins with and without a booking, and before the agent came."""
# The name of a vCPU's thread as QEMU has it. It runs for a moment now and then, so that its state
# is read in every cycle, and ends with the test, whose end of the pipe it reads.
_SLEEPER = """printf 'CPU 0/KVM' >/proc/$$/comm; echo
while read -r -t 0.05 _ || (($? > 128)); do :; done"""


def why_not() -> str | None:
    """Why stand-ins cannot be used here; ``None`` if they can."""
    if os.geteuid() != 0 or not (CPU / "cpu.shares").exists():
        return "needs root, and the cpu controller of cgroup version 1"
    if {FAST, SLOW} - os.sched_getaffinity(0):
        return "CPUs 0 and 1 are needed"
    return None


class Stand:
    """One stand-in: a process of one thread, in the group of a vCPU."""

    def __init__(self, name: str, specs: Mapping[str, str] | None = None) -> None:
        self.name, self.specs = name, specs
        self.group = CPU / f"amp-test-{os.getpid()}-{uuid.uuid4().hex[:6]}-{name}"
        self.vcpu = self.group / "vcpu0"
        self.vcpu.mkdir(parents=True)
        self.begin()

    def begin(self) -> None:
        """Start its process, in its group."""
        self.process = subprocess.Popen(
            ["bash", "-c", _SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()
        (self.vcpu / "tasks").write_text(f"{self.process.pid}")

    @property
    def xml(self) -> str:
        """Its definition."""
        text = nova_xml(self.name, 1, self.specs or {}, cpuset=f"{FAST},{SLOW}")
        return text.replace("<domain type='kvm' id='7'>", "<domain type='test'>")

    def read(self, name: str, folder: Path | None = None) -> int:
        """A number in a file of its group."""
        return int(((folder or self.vcpu) / name).read_text())

    def set(self, name: str, value: object) -> None:
        """Write such a file."""
        (self.vcpu / name).write_text(str(value))

    def limit(self) -> tuple[int, int]:
        """Quota and period in force."""
        return self.read("cpu.cfs_quota_us"), self.read("cpu.cfs_period_us")

    @property
    def quota(self) -> float | None:
        """The limit in force, in cores."""
        quota, period = self.limit()
        return None if quota < 0 else quota / period

    @property
    def place(self) -> frozenset[int]:
        """The pCPUs it may run on."""
        return frozenset(os.sched_getaffinity(self.process.pid))

    @property
    def capacity(self) -> float:
        """What it can get where it is, in reference cores, at the least."""
        share = 1.0 if self.quota is None else min(1.0, self.quota)
        return min(share / RIGHT[frozenset({p})] for p in self.place)

    @property
    def shares(self) -> int:
        """Its CPU weight, in the unit of cgroup version 1."""
        return self.read("cpu.shares", self.group)

    def state(self) -> tuple[object, ...]:
        """All of it that an agent could change."""
        return self.limit(), self.place, self.shares

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it and remove its group."""
        self.end()
        until(lambda: not (self.vcpu / "tasks").read_text(), 10, "the end of the process")
        self.vcpu.rmdir()
        self.group.rmdir()


class StandHost(Agent):
    """A host of stand-ins with an agent of its own: a booking on either core type, and others.

    ``stranger`` is a process that is none of the agent's business.
    """

    def __init__(self, folder: Path, more: str = "") -> None:
        self.root = folder / "root"
        super().__init__(
            folder,
            more=f"libvirt_uri = test://{folder}/node.xml\n"
            f"cycle_s = 0.1\nlease_s = 1.0\n{more}\n[topology]\nroot = {self.root}\n",
        )
        (self.root / RUN_PATH).mkdir(parents=True)
        for real in ("proc", "sys"):
            (self.root / real).symlink_to(f"/{real}")
        self.booked = Stand("booked", {"amp:pref_core": "0.5"})
        self.typed = Stand("typed", {"amp:pref_core": "0.4", "amp:core_type": "fast"})
        self.victim = Stand("victim")
        self.stranger = Stand("stranger")
        self.stands = [self.booked, self.typed, self.victim]
        self.define()

    def define(self) -> None:
        """Tell libvirt's test driver of the domains, and where their processes are."""
        definitions = "\n".join(stand.xml for stand in self.stands)
        (self.config.parent / "node.xml").write_text(f"<node>{definitions}</node>")
        for stand in self.stands:
            self.tell(stand)

    def tell(self, stand: Stand) -> None:
        """Write the file in which libvirt tells of a domain's process."""
        (self.root / RUN_PATH / f"{stand.name}.pid").write_text(f"{stand.process.pid}")

    def resources(self) -> list[str]:
        """The domains by UUID."""
        return [resource(stand.name) for stand in self.stands]

    def keeps_booking(self, stand: Stand) -> bool:
        """Whether a booking has the limit that is right where it is."""
        refcores = float((stand.specs or {})["amp:pref_core"])
        return (
            stand.quota is not None
            and len(stand.place) == 1
            and abs(stand.quota - refcores * RIGHT[stand.place]) < 0.01
        )

    def bookings_hold(self) -> bool:
        """Whether both bookings have theirs."""
        return self.keeps_booking(self.booked) and self.keeps_booking(self.typed)

    def controlled(self) -> bool:
        """Whether the decisions of an agent that has a lease are in force."""
        leased = lease.remaining_s(self.state_path) > 0.0
        return leased and self.bookings_hold() and self.weighted()

    def weighted(self) -> bool:
        """Whether every stand-in has the CPU weight that it shall have."""
        return [s.shares for s in self.stands] == [BOOKED, BOOKED, BEST_EFFORT]

    def safe(self) -> bool:
        """Whether what must hold without an agent is in force, and no agent has a lease."""
        left_alone = lease.remaining_s(self.state_path) == 0.0
        return left_alone and self.bookings_hold() and self.victim.place == {FAST, SLOW}

    def begin(self, *prefix: str) -> subprocess.Popen[bytes]:
        """Start an agent, without waiting for anything."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self.command(prefix=prefix), stderr=log)
        return self.process

    def close(self) -> None:
        """End the agent, its guard and the stand-ins."""
        self.stop()
        for stand in (*self.stands, self.stranger):
            stand.close()


@contextmanager
def host(folder: Path, more: str = "") -> Iterator[StandHost]:
    """A host of stand-ins."""
    made = StandHost(folder, more)
    try:
        yield made
    finally:
        made.close()
