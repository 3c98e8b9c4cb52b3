# SPDX-License-Identifier: Apache-2.0
"""Pauses: instances that the agent must not change."""

import pytest

from amp_nova.exceptions import AmpError
from amp_nova.guard import pauses as pauses_
from amp_nova.guard.pauses import Pauses

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
def pauses(tmp_path, clock):
    """An empty folder of pauses."""
    return Pauses(tmp_path, clock, clock)


def test_a_step_of_the_wall_clock_ends_no_pause(tmp_path, monkeypatch):
    """Nor does it make one longer; after a reboot, the wall clock is all there is."""
    wall, boot = Clock(), Clock()
    boot.now_s = 500.0
    Pauses(tmp_path, wall, boot).pause(UUID, "paused", 600)
    for step_s in (86_400.0, -86_400.0):
        wall.now_s += step_s
        assert Pauses(tmp_path, wall, boot).current() == {UUID: "paused"}
    boot.now_s += 601.0
    assert Pauses(tmp_path, wall, boot).current() == {}

    (tmp_path / "boot").write_text("another")
    boot.now_s = 1.0
    monkeypatch.setattr(pauses_, "BOOT_ID", str(tmp_path / "boot"))
    rebooted = Pauses(tmp_path, wall, boot)
    assert rebooted.current() == {UUID: "paused"}
    wall.now_s += 300.0
    boot.now_s += 300.0
    assert rebooted.current() == {UUID: "paused"}
    wall.now_s += 301.0
    boot.now_s += 301.0
    assert rebooted.current() == {}


def test_a_planted_link_is_not_followed(pauses, tmp_path):
    """root pauses in a folder where the agent's user may write."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "holds").mkdir()
    (tmp_path / "holds" / f"{UUID}.new").symlink_to(victim)

    pauses.pause(UUID, "paused")

    assert victim.read_text() == "precious"
    assert pauses.current() == {UUID: "paused"}
    assert not (tmp_path / "holds" / f"{UUID}.json").is_symlink()


def test_pause_ends_after_its_time(pauses, tmp_path, clock):
    """It replaces one without an end. Pauses are files: time goes on while no process runs."""
    assert pauses.current() == {}
    pauses.pause(OTHER, "released")
    pauses.pause(UUID, "released")
    pauses.pause(UUID, "paused", 60)
    clock.now_s += 59.9
    assert pauses.current() == {UUID: "paused", OTHER: "released"}

    clock.now_s += 0.2

    assert pauses.current() == Pauses(tmp_path, clock, clock).current() == {OTHER: "released"}


def test_pause_by_another_process_is_seen(pauses, tmp_path, clock):
    """The running agent sees at once what a command writes, however quickly they follow."""
    command = Pauses(tmp_path, clock, clock)
    for i in range(50):
        command.pause(UUID, f"paused {i}", 60)
        assert pauses.current() == {UUID: f"paused {i}"}
        command.resume(UUID)
        assert pauses.current() == {}


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"until_s": "soon", "why": "x"}', '{"until_s": NaN, "why": "x"}', "[" * 9_999],
    ids=range(5),
)
def test_unreadable_pause_file_pauses(pauses, tmp_path, content):
    """That is the safe side, until somebody resumes the instance."""
    pauses.pause(UUID, "paused", 60)
    (tmp_path / "holds" / f"{UUID}.json").write_text(content)
    found = Pauses(tmp_path, Clock())

    assert list(found.current()) == [UUID]
    assert found.resume(UUID)
    assert found.current() == {}


@pytest.mark.parametrize("name", ["../x", "", "/etc/x", "a\x00b", "x" * 300, ".hidden", "x\n"])
def test_name_cannot_escape_the_folder(pauses, tmp_path, name):
    """Only a name in the form of an instance's UUID becomes the name of a file."""
    outside = tmp_path / "x.json"
    outside.write_text("keep me")
    pauses.pause(UUID, "paused")

    with pytest.raises(AmpError, match="is not the UUID of an instance"):
        pauses.pause(name, "paused")

    assert not pauses.resume(name)
    assert outside.read_text() == "keep me"
    assert {p.name for p in tmp_path.rglob("*")} == {"x.json", "holds", f"{UUID}.json"}


def test_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    """The path and the remedy are named."""
    (tmp_path / "holds").write_text("a file")

    with pytest.raises(AmpError) as caught:
        Pauses(tmp_path).pause(UUID, "paused")

    assert str(caught.value) == (
        f"cannot write {tmp_path}/holds/{UUID}.json: File exists; run this as root"
    )
