"""When a failed measurement counts."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.support import lab


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets what the machine's own host takes of both CPUs."""

    def takes(ratio: float) -> None:
        class Fixed:
            def __enter__(self) -> None: ...
            def __exit__(self, *_: object) -> None: ...

        Fixed.ratio = ratio
        monkeypatch.setattr(lab, "Taken", Fixed)

    return takes


def fails() -> None:
    raise AssertionError("too little")


def test_a_failure_counts_if_little_was_stolen(host):
    host(0.01)
    with pytest.raises(AssertionError, match="too little"):
        lab.measured(fails)


def test_otherwise_it_is_repeated_and_counts_at_last(host):
    host(0.4)
    with pytest.raises(AssertionError, match="too little") as failed:
        lab.measured(fails)
    assert failed.value.__notes__ == ["the host of this virtual machine took 40.0% of its CPUs"]


def test_a_later_success_is_enough(host):
    host(0.4)
    results = iter([fails, lambda: None])
    lab.measured(lambda: next(results)())
    assert next(results, None) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="sleepers need real-time priority: root")
def test_what_the_host_takes_without_saying_so_counts():
    """Sleepers that are stopped are late, as if the machine had not run."""
    with lab.Taken() as calm:
        time.sleep(1.0)
    with lab.Taken() as taken:
        if not taken.watched:
            pytest.skip("real-time priority is refused here")
        for sleeper in taken._sleepers:
            sleeper.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        for sleeper in taken._sleepers:
            sleeper.send_signal(signal.SIGCONT)
    assert taken.ratio > 0.1 + calm.ratio
