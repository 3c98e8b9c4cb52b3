"""The fast loop as the service runs it, on a fake host whose emulated guest counts instructions."""

import time

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.agent import service
from amp_nova.host.counters.sources import Counters
from tests.unit.agent.test_service import NAME, Setup, run_until
from tests.unit.host.counters.test_tcg import PID, file_of, started


class Works(Setup):
    """A guest that books 100 million Ips and retires two instructions per nanosecond it runs."""

    def __init__(self, tmp_path, monkeypatch):
        (tmp_path / "host").mkdir()
        super().__init__(tmp_path, monkeypatch)
        self.root = tmp_path / "host"
        self.node.node._counters = Counters("auto", self.root)
        self.node.host.start(NAME, 1, PID, comm="CPU {}/TCG")
        self.node.libvirt.define(NAME, vcpus=1, specs={"amp:ips": "100M"})
        started(self.root)
        file_of(self.root, 0)
        self.ran_ns = 0

    def run(self, ran_ns):
        """The vCPU runs."""
        self.ran_ns += ran_ns
        task = self.root / f"proc/{PID}/task/{self.node.host.tid(0)}"
        with (task / "schedstat").open("r+b") as file:  # never empty in between, as the kernel's
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
    running = service.Service(works.conf(cycle_s=60))
    last = time.monotonic()

    def condition():
        nonlocal last
        now = time.monotonic()
        share = works.cores()
        works.run(round((now - last) * 1e9 * (1.0 if share is None else share)))
        last = now
        return share is not None and abs(share - 0.05) < 0.01

    run_until(running, condition)

    assert running.loop.fast.writes >= 1
    assert running.report.totals.cycles == 1


def test_release_has_the_last_word(works):
    """What 'amp-nova release' took back stays so, also before the next cycle sees the hold."""
    running = service.Service(works.conf(cycle_s=60))
    works.run(1000)
    running.once()
    fast = running.loop.fast
    assert fast.governs
    assert works.cores() is not None

    released, left = service.release(works.conf(), [NAME])
    for _ in range(20):
        works.run(20_000_000)
        time.sleep(0.01)
        fast.tick()

    assert (released, left) == ([NAME], [])
    assert works.cores() is None


def test_a_look_that_fails_is_no_end(works, caplog):
    """Nothing the fast loop does ends the agent."""
    running = service.Service(works.conf(cycle_s=60))
    works.run(1000)
    running.once()
    looks = []

    def fail():
        looks.append(1)
        raise RuntimeError("no")

    running.loop.fast.tick = fail
    run_until(running, lambda: len(looks) > 2)

    assert "fast loop failed" in caplog.text


def test_without_such_bookings_nothing_is_looked_at(works):
    """No booking in instructions, no looks."""
    works.node.libvirt.define(NAME, vcpus=1, specs={"amp:pref_core": "0.5"})
    running = service.Service(works.conf())

    running.once()

    assert not running.loop.fast.governs
