# SPDX-License-Identifier: Apache-2.0
"""The machine of ``tools/vm``: a systemd unit, real guests, and what the kernel says about them."""

import functools
import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path

import libvirt
import pytest

from tests.guests.guest import Guest, GuestSpec
from tests.support import programs

until = functools.partial(programs.until, pause_s=0.1)  # the machine may be emulated
UNIT = "amp-nova-agent.service"
GUARD = "amp-nova-guard.service"
VENDORDATA = "amp-nova-vendordata.service"
IMAGE = Path("/job/guest/guest.bin")
PIP = "PIP_NO_INDEX=1 /opt/amp-nova/bin/python -m pip -q --disable-pip-version-check"


def sh(command, check=True):
    """Run a shell command; its output."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


class Machine:
    """The host that the tests run on."""

    def __init__(self):
        self.conn = libvirt.open("qemu:///system")
        self.guests = []

    def guest(self, name, **specs):
        """Start a guest that computes without end."""
        extra = {f"amp:{key}": value for key, value in specs.items()}
        spec = GuestSpec(name=name, specs=extra or None)
        guest = Guest(self.conn, spec, IMAGE).wait(120)
        self.guests.append(guest)
        return guest

    def clear(self):
        """Destroy all guests."""
        while self.guests:
            self.guests.pop().close()

    def reconnect(self):
        """Connect again after libvirtd was restarted."""
        self.conn = until(lambda: _open(), 60, "libvirtd")
        for guest in self.guests:
            guest.domain = self.conn.lookupByName(guest.spec.name)

    def status(self):
        """The answer of ``amp-nova status``, by domain; empty while no agent answers."""
        out = sh("amp-nova status --format json", check=False)
        return {i["domain"]: i for i in json.loads(out)} if out.startswith("[") else {}

    def answers(self):
        """Whether an agent answers, with or without guests."""
        return sh("amp-nova status --format json", check=False).startswith("[")

    def enforced(self, *guests):
        """Wait until every booking has a limit."""
        for guest in guests:
            until(lambda guest=guest: quota(guest) is not None, 60, f"a limit of {guest.spec.name}")

    @staticmethod
    def metric(name, **labels):
        """The sum of the samples of this name and labels."""
        with urllib.request.urlopen("http://127.0.0.1:9178/metrics", timeout=20) as reply:
            lines = reply.read().decode().splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith((name + "{", name + " ")) and all(w in line for w in wanted)
        )


def _open():
    try:
        return libvirt.open("qemu:///system")
    except libvirt.libvirtError:
        return None


def group(guest):
    """The cgroup of vCPU 0, found through /proc."""
    for task in Path(f"/proc/{guest.pid}/task").iterdir():
        if (task / "comm").read_text().startswith("CPU 0/"):
            path = (task / "cgroup").read_text().strip().split("::")[1]
            return Path("/sys/fs/cgroup") / path.lstrip("/")
    raise AssertionError("vCPU 0 has no thread")


def quota(guest):
    """The limit in force in cores, read from the kernel; ``None`` without one."""
    amount, period = (group(guest) / "cpu.max").read_text().split()
    return None if amount == "max" else int(amount) / int(period)


def scope(guest):
    """The cgroup of the whole domain."""
    return next(path for path in group(guest).parents if path.name.endswith(".scope"))


def weight(guest):
    """The CPU weight of the domain's scope, read from the kernel."""
    return int((scope(guest) / "cpu.weight").read_text())


def main_pid():
    """The agent's process, 0 if there is none."""
    return int(sh(f"systemctl show -P MainPID {UNIT}"))


class Spinner:
    """A process that computes without end beside a guest, limited by hand.

    An emulated machine stalls now and then, and whoever has a limit loses what it could have
    received meanwhile: up to a tenth. A guest that gets what this process gets has its booking.
    """

    def __init__(self, guest, cores):
        """Limit it to ``cores``, with the guest's period, weight and CPUs."""
        self.group = scope(guest).with_name("by-hand-" + guest.spec.name)
        self.group.mkdir()
        period_us = int((group(guest) / "cpu.max").read_text().split()[1])
        (self.group / "cpu.max").write_text(f"{round(cores * period_us)} {period_us}")
        (self.group / "cpu.weight").write_text(str(weight(guest)))
        self.process = subprocess.Popen(["sh", "-c", "while :; do :; done"])
        (self.group / "cgroup.procs").write_text(str(self.process.pid))
        # Not before: a new cgroup resets a process's CPUs.
        os.sched_setaffinity(self.process.pid, os.sched_getaffinity(int(guest.task().name)))

    def cpu_ns(self):
        """Its CPU time so far, in nanoseconds."""
        stat = Path(f"/proc/{self.process.pid}/schedstat")
        return (int(stat.read_text().split()[0]),)

    def close(self):
        """End it."""
        self.process.kill()
        self.process.wait()
        until(lambda: not (self.group / "cgroup.procs").read_text(), 10, "an empty cgroup")
        self.group.rmdir()


def received(seconds, *takers):
    """CPU time per second that vCPU 0 of each guest and each spinner received."""
    began, before = time.monotonic(), [taker.cpu_ns()[0] for taker in takers]
    time.sleep(seconds)
    took_ns = 1e9 * (time.monotonic() - began)
    return [(taker.cpu_ns()[0] - was) / took_ns for taker, was in zip(takers, before, strict=True)]


def install_units():
    """Install this checkout's units and their user."""
    sh("install -m 0644 /job/etc/amp-nova/amp-nova.sysusers /usr/lib/sysusers.d/amp-nova.conf")
    sh("systemd-sysusers; install -m 0644 -t /etc/systemd/system /job/etc/amp-nova/*.service")
    sh("systemctl daemon-reload")


def upgrade():
    """Install this checkout's wheel and units as the guide says."""
    sh(f"{PIP} install --no-deps --upgrade /job/wheels/new/*.whl")
    install_units()


@pytest.fixture(scope="session")
def machine(request):
    """The machine with the agent's unit running, of this checkout unless a test upgrades to it."""
    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    made = Machine()
    if not any("upgrade" in item.name for item in request.session.items):
        upgrade()
        sh(f"systemctl enable --now {GUARD} 2>&1")
    sh(f"systemctl start {UNIT}")
    yield made
    made.clear()


@pytest.fixture
def host(machine):
    """The machine without guests, its agent running."""
    sh(f"systemctl start {UNIT}")
    until(machine.answers, 90, "the agent")
    yield machine
    machine.clear()
