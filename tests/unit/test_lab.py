"""When a failed measurement counts."""

from collections.abc import Callable
from itertools import count

import pytest

from tests import lab


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets what the machine's own host takes of both CPUs: a second passes at every look."""

    def takes(ratio: float) -> None:
        seconds, looks = count(), count()
        monkeypatch.setattr(lab.time, "monotonic", lambda: float(next(seconds)))
        monkeypatch.setattr(lab, "_stolen_s", lambda: 2 * ratio * next(looks))

    return takes


def fails() -> None:
    raise AssertionError("too little")


def test_a_failure_counts_if_little_was_stolen(host):
    host(0.04)
    with pytest.raises(AssertionError, match="too little"):
        lab.unless_stolen(fails)


def test_otherwise_nothing_can_be_said(host):
    host(0.4)
    with pytest.raises(pytest.skip.Exception, match="took 40%, 40%, 40% of its CPUs"):
        lab.unless_stolen(fails)


def test_a_later_success_is_enough(host):
    host(0.4)
    results = iter([fails, lambda: None])
    lab.unless_stolen(lambda: next(results)())
    assert next(results, None) is None
