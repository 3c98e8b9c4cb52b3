"""The fast loop as the service runs it, on a fake host whose emulated guest counts instructions."""

import time

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.agent.operator.release import release
from amp_nova.agent.service import Service
from amp_nova.host.counters.sources import Counters
from tests.unit.agent.setups import NAME, Setup, run_until
from tests.unit.host.counters.test_tcg import PID, file_of, started


class Works(Setup):
    """A guest that books 100 million Ips and retires two instructions per nanosecond it runs."""

    def __init__(self, tmp_path, monkeypatch):
        self.root = tmp_path / "host"
        super().__init__(tmp_path, monkeypatch, Counters("auto", self.root))
        self.node.host.start(NAME, 1, PID, comm="CPU {}/TCG")
        self.node.libvirt.define(NAME, vcpus=1, kind="qemu", specs={"amp:ips": "100M"})
        started(self.root)
        file_of(self.root, 0)
        self.ran_ns = 0

    def run(self, ran_ns):
        """The vCPU runs."""
        self.ran_ns += ran_ns
        task = self.root / f"proc/{PID}/task/{self.node.host.tid(0)}"
        with (task / "schedstat").open("r+b") as file:  # never empty, like the kernel's
            file.write(b"%020d 0 1\n" % self.ran_ns)
        path = self.root / f"proc/{PID}/root/dev/shm/vm.icount"
        with path.open("r+b") as file:
            file.seek(64)
            file.write((2 * self.ran_ns).to_bytes(8, "little"))

    def cores(self):
        """The limit in force."""
        quota, period = self.node.host.limit(NAME).split()
        return None if quota == "max" else int(quota) / int(period)


@pytest.fixture
def works(tmp_path, monkeypatch):
    return Works(tmp_path, monkeypatch)


def test_limits_follow_the_counters_between_two_cycles(works):
    """Two instructions a nanosecond and 100 M booked: 5 % of a core, long before the next cycle."""
    running = Service(works.conf(cycle_s=10))
    last = time.monotonic()

    def condition():
        nonlocal last
        now = time.monotonic()
        share = works.cores()
        works.run(round((now - last) * 1e9 * (1.0 if share is None else share)))
        last = now
        return share is not None and abs(share - 0.05) < 0.01

    run_until(running, condition)

    assert running.last.totals.cycles == 1


def test_the_fast_loop_does_not_undo_a_release(works):
    """Not even before the next cycle observes that the instance is paused."""
    running = Service(works.conf(cycle_s=10))
    works.run(1000)
    running.once()
    assert running.loop.fast.active
    assert works.cores() is not None

    done = release(works.conf(), [NAME])
    for _ in range(20):
        works.run(100_000)  # a fifth of its booking: the fast loop wants to raise the limit
        time.sleep(0.01)
        running.loop.tick()

    assert (done.names, done.left) == ((NAME,), ())
    assert works.cores() is None
    assert running.once().totals.failures["paused"] > 0


def test_the_fast_loop_is_inactive_without_bookings_of_ips(works):
    """A booking in reference cores needs no samples between cycles."""
    works.node.libvirt.define(NAME, vcpus=1, specs={"amp:pref_core": "0.5"})
    running = Service(works.conf())

    running.once()

    assert not running.loop.fast.active
