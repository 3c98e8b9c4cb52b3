# SPDX-License-Identifier: Apache-2.0
"""The agent's side of a lease: until when it may write, and when it may not any more."""

import errno
import os
import time

import pytest

from amp_nova.guard import lease
from amp_nova.guard.lease import Lease


@pytest.fixture
def taken(tmp_path):
    """A lease of 10 s that has just been taken."""
    found = Lease(tmp_path, 10.0)
    found.take()
    yield found
    found.close()


@pytest.fixture
def clock(monkeypatch):
    """The monotonic clock; setting ``ahead_s`` lets time pass."""

    class Clock:
        ahead_s = 0.0

        def now_ns(self, real=time.monotonic_ns):
            return real() + round(self.ahead_s * 1e9)

    found = Clock()
    monkeypatch.setattr(time, "monotonic_ns", found.now_ns)
    return found


def test_it_lasts_as_long_as_the_guard_believes(taken, tmp_path, clock):
    """Not longer, and a renewal cannot revive it: the guard may have acted."""
    clock.ahead_s = 7.0
    assert not taken.lost()
    assert lease.remaining_s(tmp_path)
    clock.ahead_s = 10.0

    assert taken.lost() == "the agent's lease has expired"
    assert not lease.remaining_s(tmp_path)
    assert taken.renew() is None
    assert taken.lost()

    taken.take()
    assert not taken.lost()


def test_a_renewal_extends_it(taken, tmp_path, clock):
    """By its length from now; what was left is returned."""
    clock.ahead_s = 4.0

    assert taken.renew() == pytest.approx(6.0, abs=0.5)

    clock.ahead_s = 13.0
    assert not taken.lost()
    assert lease.remaining_s(tmp_path)


def test_it_is_lost_if_it_expires_during_its_renewal(taken, tmp_path, clock, monkeypatch):
    """The agent was stopped right before the write, which the guard could not see."""
    put = os.pwrite

    def late(*arguments):
        clock.ahead_s = 11.0
        return put(*arguments)

    monkeypatch.setattr(os, "pwrite", late)

    assert taken.renew() is None
    assert taken.lost()


@pytest.mark.parametrize("how", ["unlinked", "replaced", "folder"])
def test_another_file_or_none_at_its_path_ends_it(taken, tmp_path, how):
    """The guard reads the file at the path. The next lease is in a file that is there."""
    path = tmp_path / lease.LEASE
    if how == "replaced":
        (tmp_path / "new").write_text(path.read_text())
        os.replace(tmp_path / "new", path)
    elif how == "unlinked":
        path.unlink()
    else:
        tmp_path.rename(tmp_path.with_name("away"))

    assert taken.lost() == f"the agent's lease file {path} was removed or replaced"
    assert taken.renew() is None

    taken.take()
    assert not taken.lost()
    assert lease.remaining_s(tmp_path) > 9.0


def test_its_space_is_reserved_when_it_is_opened(tmp_path, monkeypatch):
    """On a full disk an agent does not start, but one that runs goes on."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        Lease(tmp_path, 10.0)
    monkeypatch.undo()

    Lease(tmp_path, 10.0).take()
    assert (tmp_path / lease.LEASE).stat().st_size == 21


def test_a_lease_of_another_boot_is_none(tmp_path):
    """The monotonic clock began anew, so its end is far away."""
    (tmp_path / lease.LEASE).write_text(str(time.monotonic_ns() + 86_500 * 10**9))

    assert not lease.remaining_s(tmp_path)


def test_a_guard_starts_on_a_full_disk(tmp_path, monkeypatch):
    """The lock is what counts; the process ID in it is for people."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(time, "sleep", lambda _s: None)

    assert lease.alone(tmp_path) is not None
    assert lease.alone(tmp_path) is None


def test_there_is_one_guard(tmp_path, monkeypatch):
    """The second one gives up, as long as the first one runs."""
    monkeypatch.setattr(time, "sleep", lambda _s: None)
    first = lease.alone(tmp_path)
    assert lease.alone(tmp_path) is None
    os.close(first)

    again = lease.alone(tmp_path)
    assert again is not None
    os.close(again)
