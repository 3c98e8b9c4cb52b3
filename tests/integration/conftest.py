"""Real guests, real cgroups, a real agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import SLOW, WRITER, Agent, Lab, opened


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab of real guests."""
    with opened(tmp_path_factory.mktemp("lab")) as made:
        yield made


@pytest.fixture
def slow_core(lab: Lab) -> Iterator[None]:
    """Makes one CPU really slower; for the others it is enough that the agent believes it."""
    from tests.guests.slowcore import SlowCore

    with SlowCore(SLOW, 0.5):
        yield


@pytest.fixture
def guests(lab: Lab) -> Iterator[Lab]:
    """The lab; the guests a test starts end with it."""
    yield lab
    lab.clear()


@pytest.fixture
def writer() -> str:
    """The ``[agent] writer`` of the test's agent; ``tests.lab.both_writers`` runs it with each."""
    return WRITER


@pytest.fixture
def agent(lab: Lab, tmp_path: Path, writer: str) -> Iterator[Agent]:
    """An agent, not started yet; stopped with the test."""
    made = Agent(tmp_path / "agent", more=f"writer = {writer}\n")
    yield made
    made.stop()
