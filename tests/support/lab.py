# SPDX-License-Identifier: Apache-2.0
"""What integration tests and benchmarks share: a lab of real guests, and real agents for them."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from amp_nova.agent.cycle import STAGES
from tests.support.programs import guards, until

FAST, SLOW = 0, 1
"""The CPU at full speed, and the one that is slowed down."""

WRITER = os.environ.get("AMP_NOVA_WRITER", "cgroup")
"""What the agents of tests that do not choose write through."""
CYCLE_S = os.environ.get("AMP_NOVA_CYCLE_S", "1.0")
"""The cycle of agents: shorter in runs that measure nothing, as most tests wait for cycles."""
NAP_NS = int(os.environ.get("AMP_NOVA_NAP_MS", "0")) * 1_000_000
"""How long guests sleep after each 16 rounds of work, in runs that measure nothing."""
MEASURED_TIMES, TAKEN_MOST_RATIO = 3, 0.02
"""How often a measurement is tried; the share of both CPUs that may be taken if it counts."""
SETTLED_CYCLES = 10
both_writers = pytest.mark.parametrize("writer", ["cgroup", "libvirt"])
"""Runs a test with an agent that writes cgroups, and with one that writes through libvirt."""


def why_not() -> str | None:
    """Why real guests cannot run here; ``None`` if they can."""
    try:
        import libvirt
    except ImportError:
        return "libvirt's Python binding is not installed"
    if os.geteuid() != 0:
        return "only root may slow a CPU down and write cgroups"
    if {FAST, SLOW} - os.sched_getaffinity(0):
        return "CPUs 0 and 1 are needed"
    if shutil.which("qemu-system-x86_64") is None or shutil.which("as") is None:
        return "qemu-system-x86 or binutils is not installed"
    try:
        libvirt.open("qemu:///system").close()
    except libvirt.libvirtError as exc:
        return f"libvirt does not answer: {exc}"
    from tests.guests import slowcore

    return slowcore.available()


class Lab:
    """Guests with unique names, all destroyed at the end."""

    def __init__(self, folder: Path) -> None:
        import libvirt

        from tests.guests.guest import build

        libvirt.registerErrorHandler(lambda _context, _error: None, None)
        self.conn = libvirt.open("qemu:///system")
        self.folder = folder
        self.image = build(folder)
        self.prefix = f"amp-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._guests: list[Any] = []
        self._destroy_leftovers()

    def guest(self, name: str, specs: dict[str, str] | None = None, **more: Any) -> Any:
        """Start a guest and wait until it counts."""
        from tests.guests.guest import Guest, GuestSpec

        spec = GuestSpec(name=f"{self.prefix}-{name}", specs=specs, **more)
        guest = Guest(self.conn, spec, self.image)
        self._guests.append(guest)
        guest.wait()
        if NAP_NS:
            guest.nap(NAP_NS)
        return guest

    def sender(self, name: str, **more: Any) -> Any:
        """Start a guest with one tap that sends frames and counts them instead of rounds."""
        from tests.guests.guest import SENDER, Guest, GuestSpec, build

        devices = (
            '<interface type="ethernet"><model type="virtio"/><driver name="qemu"/></interface>'
        )
        spec = GuestSpec(name=f"{self.prefix}-{name}", devices=devices, **more)
        guest = Guest(self.conn, spec, build(self.folder, SENDER))
        self._guests.append(guest)
        return guest.wait()

    def server(self, name: str, specs: dict[str, str], port: Path, **more: Any) -> Any:
        """Start a guest that answers each byte at a socket, its serial port, after some work."""
        from tests.guests.guest import SERVER, Guest, GuestSpec, build

        devices = f'<serial type="unix"><source mode="bind" path="{port}"/></serial>'
        spec = GuestSpec(name=f"{self.prefix}-{name}", specs=specs, devices=devices, **more)
        guest = Guest(self.conn, spec, build(self.folder, SERVER))
        self._guests.append(guest)
        return guest.wait()

    def _destroy_leftovers(self) -> None:
        """Destroy the guests of earlier runs that were killed before they could."""
        for domain in self.conn.listAllDomains():
            left = re.fullmatch(r"amp-(\d+)-[0-9a-f]{6}-.*", domain.name())
            if left and not Path("/proc", left[1]).exists():
                domain.destroy()

    def destroy(self, guest: Any) -> None:
        """Destroy one guest."""
        self._guests.remove(guest)
        guest.close()

    def clear(self) -> None:
        """Destroy all guests."""
        while self._guests:
            self._guests.pop().close()

    def reconnect(self) -> None:
        """Connect again, after libvirt was restarted."""
        import libvirt

        self.conn = libvirt.open("qemu:///system")
        for guest in self._guests:
            guest.domain = self.conn.lookupByName(guest.spec.name)

    def close(self) -> None:
        """Destroy all guests and disconnect."""
        self.clear()
        self.conn.close()


def cgroup(guest: Any, vcpu: int = 0) -> Path:
    """A vCPU's CPU cgroup, found through /proc, as an operator would."""
    for line in (guest.task(vcpu) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return Path("/sys/fs/cgroup/cpu") / path.lstrip("/")
    return Path("/sys/fs/cgroup") / path.lstrip("/")


def quota(guest: Any, vcpu: int = 0) -> float | None:
    """The limit in force, in cores, read from the kernel, not from the agent."""
    path = cgroup(guest, vcpu)
    if (path / "cpu.max").exists():
        amount, period = (path / "cpu.max").read_text().split()
        return None if amount == "max" else int(amount) / int(period)
    amount = (path / "cpu.cfs_quota_us").read_text()
    period = (path / "cpu.cfs_period_us").read_text()
    return None if int(amount) < 0 else int(amount) / int(period)


def affinity(guest: Any, vcpu: int = 0) -> set[int]:
    """The pCPUs a vCPU may run on, read from the kernel."""
    return os.sched_getaffinity(int(guest.task(vcpu).name))


@contextlib.contextmanager
def undisturbed(guest: Any, times: int = 8) -> Iterator[None]:
    """Give all guests together so many times the weight of anything else on this machine."""
    machine = next(p for p in cgroup(guest).parents if p.name in ("machine", "machine.slice"))
    v2 = (machine / "cpu.weight").exists()
    file, unit = machine / ("cpu.weight" if v2 else "cpu.shares"), 100 if v2 else 1024
    before = file.read_text()
    file.write_text(f"{times * unit}")
    try:
        yield
    finally:
        file.write_text(before)


LIMITED = 64
"""``times`` for guests that are limited, or on one CPU: others would leave the machine nothing."""


SLEEPER = """
import contextlib, os, select, sys, time
with contextlib.suppress(OSError), open("/sys/fs/cgroup/cpu/cgroup.procs", "w") as root:
    root.write(str(os.getpid()))
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(50))
late_s = 0.0
ended = False
print(flush=True)
while not ended:
    due_s = time.monotonic() + 0.1
    ended = bool(select.select([0], [], [], 0.1)[0])
    late_s += max(0.0, time.monotonic() - due_s - 0.005)
print(late_s)
"""
"""A process that no other one delays: while it does not run, this machine does not have the CPU.
Only the root group has real-time priority; and more often, it would disturb what is measured."""


class Taken:
    """The share of both CPUs that this machine's own host took, at the end of a ``with`` block.

    As the host says (steal), or as it shows: some do not say.
    """

    ratio = 0.0
    watched = False
    """Whether it would notice what the host does not say: real-time priority is allowed."""

    def __enter__(self) -> "Taken":
        self._began_s, self._stolen_s = time.monotonic(), self._steal_s()
        self._sleepers = [
            subprocess.Popen(
                [sys.executable, "-SE", "-c", SLEEPER, str(cpu)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # where real-time priority is not allowed
            )
            for cpu in (FAST, SLOW)
        ]
        began = [sleeper.stdout.readline() for sleeper in self._sleepers]
        self.watched = all(began)
        return self

    def __exit__(self, *_: object) -> None:
        late_s = sum(float(sleeper.communicate()[0] or 0.0) for sleeper in self._sleepers)
        wall_s = time.monotonic() - self._began_s
        self.ratio = max(late_s, self._steal_s() - self._stolen_s) / 2 / wall_s

    @staticmethod
    def _steal_s() -> float:
        cpus = (f"cpu{FAST}", f"cpu{SLOW}")
        fields = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        return sum(int(f[8]) for f in fields if f[0] in cpus) / os.sysconf("SC_CLK_TCK")


def measured(check: Callable[[], None]) -> None:
    """A check that measures, repeated if this machine's own host took its CPUs; then it fails."""
    for left in reversed(range(MEASURED_TIMES)):
        taken = Taken()
        try:
            with taken:
                check()
            return
        except AssertionError as exc:
            exc.add_note(f"the host of this virtual machine took {taken.ratio:.1%} of its CPUs")
            if taken.ratio <= TAKEN_MOST_RATIO or not left:
                raise


class Usage(NamedTuple):
    """What a guest got in a window: CPU time over time, and rounds of work per second."""

    cores: float
    rounds_per_s: float


def usage(guests: Sequence[Any], seconds: float = 3.0, windows: int = 1) -> list[list[Usage]]:
    """What each guest gets over all its vCPUs in each of some windows, read from the kernel."""
    marks = []
    for left in reversed(range(windows + 1)):
        marks.append([(time.monotonic(), sum(g.cpu_ns()), sum(g.rounds())) for g in guests])
        time.sleep(seconds if left else 0.0)
    return [
        [
            Usage((c - b) / 1e9 / (t - s), (r - q) / (t - s))
            for (s, b, q), (t, c, r) in pairwise(of_guest)
        ]
        for of_guest in zip(*marks, strict=True)
    ]


class Agent:
    """A real ``amp-nova-agent`` process with a configuration of its own."""

    def __init__(
        self, folder: Path, coefficient: float = 2.0, more: str = "", policy: str = "acfs"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.state_path = folder / "state"
        self.config = folder / "agent.conf"
        self.log = folder / "agent.log"
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.config.write_text(
            f"[topology]\ncore_type = fast {FAST} {coefficient}\ncore_type = slow {SLOW} 1.0\n"
            f"calibration_file = {folder}/none.json\n"
            f"[exporter]\nport = 0\ndetail = vcpu\n[agent]\nstate_path = {self.state_path}\n"
            f"cycle_s = {CYCLE_S}\npolicy = {policy}\n{more}"
        )

    def command(self, *arguments: str, prefix: tuple[str, ...] = ()) -> list[str]:
        """The command line that starts the agent."""
        program = str(Path(sys.executable).with_name("amp-nova-agent"))
        return [*prefix, program, "--config-file", str(self.config), *arguments]

    def start(self, *prefix: str, settle: bool = True) -> "Agent":
        """Start it and wait until it has finished a cycle.

        If it writes through libvirt, also until it has nothing to write, unless not to ``settle``:
        there is always something while a booking in instructions per second is adjusted.
        """
        with self.log.open("w") as log:
            self.process = subprocess.Popen(self.command(prefix=prefix), stderr=log)
        try:
            self._started(settle)
        except BaseException:
            self.stop()  # nobody has it to stop it
            raise
        return self

    def _started(self, settle: bool) -> None:
        until(lambda: "page at " in self.log.read_text(), 20, "the agent's start")
        self.url = self.log.read_text().split("page at ")[1].split(",")[0] + "metrics"
        until(self.cycles, 20, "a cycle")
        if "has not answered yet" in self.log.read_text():
            self.next_cycle()  # libvirt was slow: a later cycle takes its answers
        if settle and "writer = libvirt" in self.config.read_text():
            self.settle()

    def settle(self) -> None:
        """Wait for a cycle that has nothing to write: libvirt may need more than one for all."""
        before = None
        for _ in range(SETTLED_CYCLES):
            now = (self.metric("amp_writes_total"), self.failures())
            if now == before:
                return
            before = now
            self.next_cycle(1)

    def failures(self) -> float:
        """Changes that failed so far."""
        return sum(v for name, _, v in self.metrics() if name == "amp_actuation_failures_total")

    def metrics(self) -> list[tuple[str, dict[str, str], float]]:
        """Every sample that it exports now."""
        with urllib.request.urlopen(self.url, timeout=10) as reply:
            text = reply.read().decode()
        return [
            (s.name, dict(s.labels), s.value)
            for family in text_string_to_metric_families(text)
            for s in family.samples
        ]

    def metric(self, metric_name: str, **labels: str) -> float | None:
        """One sample, or ``None``."""
        for found, its_labels, value in self.metrics():
            if found == metric_name and labels.items() <= its_labels.items():
                return value
        return None

    def cycles(self) -> float:
        """Cycles finished so far."""
        return self.metric("amp_cycle_duration_seconds_count", stage=STAGES[-1]) or 0.0

    def next_cycle(self, count: int = 2) -> None:
        """Wait for some more cycles."""
        aim = self.cycles() + count
        until(lambda: self.cycles() >= aim, 20, "the next cycle")

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``amp-nova`` with the agent's configuration."""
        program = str(Path(sys.executable).with_name("amp-nova"))
        command = [program, *arguments, "--config-file", str(self.config)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    def kill(self) -> None:
        """SIGKILL, as by the kernel when memory is short; the guard stays."""
        assert self.process is not None
        self.process.kill()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired as exc:
            for stack in Path(f"/proc/{self.process.pid}/task").glob("*/stack"):
                exc.add_note(f"thread {stack.parent.name}:\n{stack.read_text()}")
            raise

    def guard_pid(self) -> int | None:
        """The process id of its guard, while that runs."""
        try:
            pid = int((self.state_path / "guard.lock").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self.state_path) in command.split(b"\0") else None

    def stop(self) -> None:
        """Stop it, whatever state it is in, and its guard."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)  # a stopped process would not notice
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()
        for pid in guards(self.state_path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Lab]:
    """A lab, or a skip that says why there is none."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    lab = Lab(folder)
    try:
        yield lab
    finally:
        lab.close()
