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
        monkeypatch.setattr(lab, "stolen_s", lambda: 2 * ratio * next(looks))

    return takes


def fails() -> None:
    raise AssertionError("too little")


def test_a_failure_counts_if_little_was_stolen(host):
    host(0.04)
    with pytest.raises(AssertionError, match="too little"):
        lab.measured(fails)


def test_otherwise_it_is_repeated_and_counts_at_last(host):
    host(0.4)
    with pytest.raises(AssertionError, match="too little") as failed:
        lab.measured(fails)
    assert failed.value.__notes__ == ["the host of this virtual machine took 40% of its CPUs"]


def test_a_later_success_is_enough(host):
    host(0.4)
    results = iter([fails, lambda: None])
    lab.measured(lambda: next(results)())
    assert next(results, None) is None
