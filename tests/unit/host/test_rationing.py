"""A vCPU that is given portions, to all others has a limit; files and threads are the test's."""

import os
import subprocess
import time

import pytest

from amp_nova.core.capacity import Bandwidth
from amp_nova.host import rationing
from amp_nova.host.charging import Charger
from amp_nova.host.rationing import Rationed
from amp_nova.host.watched import Where
from tests.lab import until

KEY = ("vm", 0)
LIMIT = Bandwidth(2_000, 20_000)
OTHER = Bandwidth(3_000, 20_000)


class Vcpu:
    """A FAKE vCPU: regular files in place of the kernel's, a real thread to set nice values of."""

    def __init__(self, folder, tid):
        self.folder, self.counted = folder, 1_000_000
        self.write("schedstat", "1000000 0 0")
        self.write("cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_time 0")
        self.set(LIMIT)
        self.where = Where(tid, folder, folder, 1, 2.5e8, lambda: self.counted)

    def write(self, name, text):
        (self.folder / name).write_text(f"{text}\n")

    def set(self, limit):
        self.write("cpu.cfs_quota_us", limit.quota_us if limit else -1)
        self.write("cpu.cfs_period_us", limit.period_us if limit else 100_000)

    def limit(self):
        quota, period = (
            int((self.folder / name).read_text().split()[0])
            for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        )
        return Bandwidth(quota, period)


@pytest.fixture
def vcpu(tmp_path):
    process = subprocess.Popen(["sleep", "60"])
    yield Vcpu(tmp_path, process.pid)
    process.kill()
    process.wait()


@pytest.fixture
def rationed(vcpu):
    found = Rationed(vcpu.where)
    found.look()
    yield found
    found.close()


def test_others_see_the_limit_that_portions_stand_for(vcpu, rationed):
    """A portion is an eighth of a second's limit at times: that is nobody else's business."""
    portion = vcpu.limit()

    assert rationed.active
    assert portion.period_us == 50_000
    assert 0 < portion.cores < LIMIT.cores
    assert rationed.stands_for(portion) == LIMIT
    assert rationed.stands_for(OTHER) == OTHER  # somebody wrote that


def test_the_limit_is_written_when_portions_end(vcpu, rationed):
    """So nothing is left of them when the agent stops."""
    rationed.close()

    assert vcpu.limit() == LIMIT


def test_another_limit_takes_the_place_of_the_one_portions_stand_for(vcpu, rationed):
    """It is not written before they end."""
    portion = vcpu.limit()

    assert rationed.take(OTHER)
    assert vcpu.limit() == portion
    assert rationed.stands_for(portion) == OTHER
    rationed.close()
    assert vcpu.limit() == OTHER


def test_a_limit_that_is_taken_off_ends_portions(vcpu, rationed):
    """It is the caller's to write."""
    assert not rationed.take(None)
    assert not rationed.active


@pytest.mark.parametrize("theirs", [OTHER, Bandwidth(50_000, 100_000)])
def test_what_somebody_else_wrote_stays(vcpu, rationed, theirs):
    """As when an operator releases the instance meanwhile."""
    vcpu.set(theirs)

    assert rationed.stands_for(vcpu.limit()) == theirs
    assert not rationed.take(LIMIT)
    assert not rationed.active
    rationed.close()
    assert vcpu.limit() == theirs


def test_it_has_its_limit_while_nothing_counts_it(vcpu, rationed):
    """And is looked at again after a while."""
    vcpu.counted = None
    rationed.look()

    assert vcpu.limit() == LIMIT
    assert not rationed.active
    assert rationed.due_ns - time.monotonic_ns() > rationing.REST_NS / 2

    rationed.look()  # it has not run since
    assert not rationed.active
    vcpu.counted = 1_000_000
    vcpu.write("schedstat", "5000000000 0 0")
    rationed.look()
    assert rationed.active


def test_who_may_not_write_portions_does_not_begin(vcpu, monkeypatch):
    """The limit stays as it is; charging other vCPUs does not end for that."""

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    found = Rationed(vcpu.where)
    monkeypatch.setattr(found.group, "set_bandwidth", refused)
    found.look()

    assert not found.active
    assert vcpu.limit() == LIMIT
    assert found.due_ns > time.monotonic_ns()
    found.close()


def test_one_without_a_limit_is_left_alone(vcpu):
    """A soft booking, or one that was released."""
    vcpu.set(None)
    found = Rationed(vcpu.where)
    found.look()

    assert not found.active
    assert found.stands_for(None) is None
    found.close()


def test_the_charger_gives_portions_and_takes_them_back(vcpu):
    """To those who book Ips, as long as they are named."""
    charger = Charger()
    charger.follow({KEY: vcpu.where})
    until(lambda: charger.rationed() == {KEY})

    assert charger.stands_for(KEY)(vcpu.limit()) == LIMIT
    assert charger.take(KEY, OTHER)
    charger.follow({})
    until(lambda: vcpu.limit() == OTHER)
    assert not charger.rationed()
    assert charger.stands_for(KEY) is None
    assert not charger.take(KEY, LIMIT)
    charger.stop()


def test_a_fault_costs_one_vcpu_its_portions(vcpu, tmp_path, caplog):
    """It has its limit again; the charger goes on with the others."""
    (tmp_path / "other").mkdir()
    other = Vcpu(tmp_path / "other", os.getpid())
    faults = []

    def faulty():
        faults.append(1)
        return {}["a fault"]

    charger = Charger()
    where = Where(vcpu.where.tid, vcpu.folder, vcpu.folder, 1, 2.5e8, faulty)
    charger.follow({KEY: where, ("other", 0): other.where})
    until(lambda: faults)
    until(lambda: charger.rationed() == {("other", 0)})

    assert vcpu.limit() == LIMIT
    assert "vm vCPU 0" in caplog.text
    charger.stop()
    assert other.limit() == LIMIT
