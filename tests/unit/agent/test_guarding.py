# SPDX-License-Identifier: Apache-2.0
"""The agent's lease around its cycles: when it is renewed, when it is lost, and what follows."""

import os
from types import SimpleNamespace

import pytest

from amp_nova.agent.guarding import Guarding
from amp_nova.guard import lease, locks
from amp_nova.model.allocation import LEASE, LOCKED, Failure, Outcome


def cycle(**failures):
    """A completed cycle, with the reasons of its failures."""
    found = {name: Failure(reason, f"it is {reason}") for name, reason in failures.items()}
    return SimpleNamespace(outcome=Outcome(found))


@pytest.fixture
def guarding(tmp_path, monkeypatch):
    """An agent with a lease of 10 s, after its first cycle."""
    monkeypatch.setattr(Guarding, "_start", lambda _self: None)
    monkeypatch.setattr("amp_nova.agent.guarding.LOCK_WAIT_S", 0.0)
    found = Guarding(tmp_path, 10.0)
    assert found.before()
    found.after(cycle())
    yield found
    found.close()


def unlinked(state_path):
    """The file of the lease is removed."""
    (state_path / lease.LEASE).unlink()


def test_nothing_may_be_written_before_the_first_cycle_begins(tmp_path, monkeypatch):
    """An agent that has only started has no lease, but does not end that of the last one."""
    monkeypatch.setattr(Guarding, "_start", lambda _self: None)
    before = lease.Lease(tmp_path, 10.0)
    before.take()

    guarding = Guarding(tmp_path, 10.0)

    assert guarding.lost()
    assert lease.remaining_s(tmp_path) > 9.0
    guarding.before()
    assert not guarding.lost()


def test_a_lost_lease_is_replaced_by_the_next_cycle_which_adopts(guarding, tmp_path, caplog):
    """Not before: what the last cycle decided must not be written any more."""
    unlinked(tmp_path)

    assert guarding.after(cycle(vcpu=LEASE)).left_s == 0.0
    assert guarding.lost()
    assert not lease.remaining_s(tmp_path)

    assert guarding.before()
    assert not guarding.lost()
    assert lease.remaining_s(tmp_path) > 9.0
    assert f"{tmp_path}/lease was removed or replaced; taking a new one" in caplog.text
    assert not guarding.before()


def test_no_new_lease_is_taken_unless_a_cycle_was_completed(guarding, tmp_path):
    """An agent whose cycles all fail must not keep the guard from its work."""
    unlinked(tmp_path)
    guarding.before()
    unlinked(tmp_path)
    guarding.after(None)

    assert not guarding.before()
    assert guarding.lost()

    guarding.after(cycle(vcpu=LEASE))
    assert guarding.before()


def test_no_new_lease_is_taken_while_the_guard_is_at_work(guarding, tmp_path, caplog):
    """It has the lock; the agent says so once."""
    unlinked(tmp_path)
    with locks.locked(tmp_path, locks.CYCLE):
        for _ in range(2):
            guarding.before()
            assert guarding.lost()
    guarding.before()

    assert not guarding.lost()
    assert caplog.text.count("cannot take a new lease (another process is changing limits") == 1
    assert f"process {os.getpid()}" in caplog.text


def test_a_valid_lease_is_renewed_and_what_the_guard_did_is_adopted_once(guarding, tmp_path):
    """Cycle by cycle; there is nothing else to adopt."""
    assert not guarding.before()
    assert guarding.after(cycle()).left_s > 9.0
    lease.count_expiration(tmp_path)

    assert guarding.before()
    assert not guarding.before()


def test_a_blocked_cycle_does_not_renew_it(guarding, tmp_path):
    """Another process has the lock, so the agent is not in control."""
    left_s = lease.remaining_s(tmp_path)

    guarding.after(cycle(vcpu=LOCKED))

    assert lease.remaining_s(tmp_path) < left_s
