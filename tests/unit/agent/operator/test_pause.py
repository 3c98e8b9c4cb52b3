"""Holds: instances the agent keeps its hands off."""

import pytest

from amp_nova.agent.operator.pause import Holds
from amp_nova.exceptions import AmpError

UUID = "7b4c0ac4-6d3f-4c8e-9a53-0a4f5f3b8e21"
OTHER = "7b4c0ac4-6d3f-4c8e-9a53-0a4f5f3b8e22"


class Clock:
    """Wall time that a test moves."""

    now_s = 1_000_000.0

    def __call__(self):
        """The time now."""
        return self.now_s


@pytest.fixture
def clock():
    """A clock that stands still."""
    return Clock()


@pytest.fixture
def holds(tmp_path, clock):
    """An empty folder of holds."""
    return Holds(tmp_path, clock)


def test_nothing_is_held_at_first(holds):
    """A state folder without holds, or none at all, holds nothing."""
    assert holds.current() == {}


def test_hold_lasts_until_its_end(holds, clock):
    """A hold with a time to live ends by itself."""
    holds.hold(UUID, "paused", 60)
    clock.now_s += 59.9
    assert holds.current() == {UUID: "paused"}

    clock.now_s += 0.2

    assert holds.current() == {}


def test_hold_without_an_end_lasts_until_it_is_resumed(holds, clock):
    """A release holds for good."""
    holds.hold(UUID, "released")
    clock.now_s += 1e9
    assert holds.current() == {UUID: "released"}

    assert holds.resume(UUID)

    assert holds.current() == {}


def test_resuming_what_is_not_held_says_so(holds):
    """Nothing to resume is no error, and not a success."""
    assert not holds.resume(UUID)


def test_hold_survives_a_restart(holds, tmp_path, clock):
    """Holds are files: another process reads the same, and time goes on meanwhile."""
    holds.hold(UUID, "paused", 60)
    holds.hold(OTHER, "released")
    clock.now_s += 61

    assert Holds(tmp_path, clock).current() == {OTHER: "released"}


def test_hold_of_another_process_is_seen(holds, tmp_path, clock):
    """The running agent sees at once what a command writes, however fast they come."""
    command = Holds(tmp_path, clock)
    for i in range(50):
        command.hold(UUID, f"paused {i}", 60)
        assert holds.current() == {UUID: f"paused {i}"}
        command.resume(UUID)
        assert holds.current() == {}


def test_later_hold_replaces_an_earlier_one(holds, clock):
    """The last word counts, also when it is shorter."""
    holds.hold(UUID, "released")
    holds.hold(UUID, "paused", 10)
    clock.now_s += 11

    assert holds.current() == {}


@pytest.mark.parametrize(
    "content",
    ["", "garbage", "[]", "{}", '{"until_s": "soon", "why": "x"}', '{"until_s": NaN, "why": "x"}'],
)
def test_hold_that_cannot_be_read_holds(holds, tmp_path, content):
    """Hands off is the safe side, until somebody resumes."""
    holds.hold(UUID, "paused", 60)
    (tmp_path / "holds" / f"{UUID}.json").write_text(content)
    found = Holds(tmp_path, Clock())

    assert list(found.current()) == [UUID]
    assert found.resume(UUID)
    assert found.current() == {}


@pytest.mark.parametrize(
    "name",
    ["../x", "..", ".", "", "/etc/x", "a/b", "a\x00b", "x" * 300, "a b", ".hidden", "härd", "x\n"],
)
def test_name_cannot_escape_the_folder(holds, tmp_path, name):
    """Only what an instance's UUID may look like becomes the name of a file."""
    outside = tmp_path / "x.json"
    outside.write_text("keep me")
    holds.hold(UUID, "paused")

    with pytest.raises(AmpError, match="is not the UUID of an instance"):
        holds.hold(name, "paused")

    assert not holds.resume(name)
    assert outside.read_text() == "keep me"
    assert {p.name for p in tmp_path.rglob("*")} == {"x.json", "holds", f"{UUID}.json"}


def test_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    """The path and the remedy are named."""
    (tmp_path / "holds").write_text("a file")

    with pytest.raises(AmpError) as caught:
        Holds(tmp_path).hold(UUID, "paused")

    assert str(caught.value) == (
        f"cannot write {tmp_path}/holds/{UUID}.json: File exists; run this as root"
    )
