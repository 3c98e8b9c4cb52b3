"""Foreign changes: told from our own, and how long they are put right."""

from amp_nova.control.drift import REPAIRS_WITHIN_S, YIELD_S, Quarrel, foreign, quarrel
from amp_nova.model.allocation import Grant
from tests.hosts import limit, reading


def expected(pcpus=(0, 1), **rest):
    return Grant(("vm", 0), frozenset(pcpus), **rest)


def test_what_was_carried_out_is_no_drift():
    """Nor is a limit that was never ours."""
    now = reading(pcpus=[0, 1], bandwidth=limit(0.5))

    assert foreign(expected(bandwidth=limit(0.5), limits=True), now) == ()
    assert foreign(expected(), now) == ()


def test_what_somebody_else_changed():
    """Quota and affinity are told apart; both may have changed."""
    now = reading(pcpus=[2], bandwidth=limit(0.9))

    assert foreign(expected(bandwidth=limit(0.5), limits=True), now) == ("quota", "affinity")
    assert foreign(expected(limits=True, pcpus=[2]), now) == ("quota",)
    assert foreign(expected(bandwidth=limit(0.9), limits=True), now) == ("affinity",)


def test_novas_own_changes_are_no_drift():
    """When Nova allows other pCPUs by now, the affinity moved with it."""
    assert foreign(expected([0, 1]), reading(pcpus=[1], allowed=[1, 2])) == ()


def test_a_policy_may_choose_within_a_loose_grant():
    """Fewer pCPUs than granted are no drift there; others are."""
    assert foreign(expected(loose=True), reading(pcpus=[1])) == ()
    assert foreign(expected(loose=True), reading(pcpus=[2])) == ("affinity",)


def test_yields_after_some_repairs():
    """Three within a minute are put right; the fourth time, hands off for five minutes."""
    state = Quarrel()
    for at in (0.0, 10.0, 20.0):
        state = quarrel(state, at, 3)
        assert state.yielded_until_s <= at

    assert quarrel(state, 30.0, 3).yielded_until_s == 30.0 + YIELD_S


def test_old_repairs_are_forgotten():
    """Now and then is no war."""
    state = Quarrel()
    for at in range(100):
        state = quarrel(state, at * REPAIRS_WITHIN_S, 1)

        assert state.yielded_until_s == 0.0


def test_no_repairs_at_all():
    """An operator may have none of it: yield at once."""
    assert quarrel(Quarrel(), 7.0, 0).yielded_until_s == 7.0 + YIELD_S
