"""A vCPU is charged by setting its thread's nice value anew; files and threads are the test's."""

import os
import subprocess
import time

import pytest

from amp_nova.host.charging import Charger
from amp_nova.host.watched import Where
from tests.lab import until

KEY = ("vm", 0)


@pytest.fixture
def thread():
    """A real thread to set nice values of: that of a program which sleeps."""
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def where(tmp_path, thread):
    """A FAKE vCPU with a limit of 5 ms in 100: regular files in place of the kernel's."""
    (tmp_path / "schedstat").write_text("1000000 0 0\n")
    (tmp_path / "cpu.stat").write_text("nr_periods 0\nnr_throttled 0\nthrottled_time 0\n")
    (tmp_path / "cpu.cfs_quota_us").write_text("5000\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    return Where(thread, tmp_path, tmp_path, 1)


@pytest.fixture
def charger():
    """A charger that ends with the test."""
    found = Charger()
    yield found
    found.stop()


def test_nice_value_is_as_before(charger, where, thread):
    """It is set anew, and put back."""
    os.setpriority(os.PRIO_PROCESS, thread, 19)

    charger.follow({KEY: where})
    until(lambda: charger.looks > 20)
    charger.stop()

    assert os.getpriority(os.PRIO_PROCESS, thread) == 19


def test_vcpu_is_let_go(charger, where):
    """One that is not named any longer is not looked at."""
    charger.follow({KEY: where})
    until(lambda: charger.looks > 5)
    charger.follow({})
    time.sleep(0.05)
    looks = charger.looks
    time.sleep(0.05)

    assert charger.looks == looks


def test_vcpu_that_went_is_dropped(charger, where):
    """Nothing is said: the next cycle finds that out. Others are charged as before."""
    gone = Where(2**22 + 1, where.task, where.group, 1)  # no process has such an id

    charger.follow({("gone", 0): gone, KEY: where})

    until(lambda: charger.looks > 10)


def test_limit_that_was_taken_off_is_waited_for(charger, where):
    """A vCPU without a limit has no quota that ends: it is asked once a second."""
    (where.group / "cpu.cfs_quota_us").write_text("-1\n")
    charger.follow({KEY: where})
    time.sleep(0.2)

    assert charger.looks == 1


def test_who_may_not_set_nice_values_is_told_once(charger, where, monkeypatch, caplog):
    """Limits are then kept by the kernel alone, as without it."""

    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refused)
    charger.follow({KEY: where})
    until(lambda: caplog.text)
    charger.follow({KEY: where, ("other", 0): where})
    time.sleep(0.05)

    assert charger.looks == 1
    assert caplog.text.count("small limits are kept by the kernel's tick alone") == 1
