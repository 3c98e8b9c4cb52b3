"""Lock files of the state folder."""

import pytest

from amp_nova.agent.operator.locks import locked
from amp_nova.exceptions import ConfigInvalid


def test_second_agent_is_refused(tmp_path):
    """Two agents would fight over the same limits."""
    with (
        locked(tmp_path, "agent.lock"),
        pytest.raises(ConfigInvalid, match="another amp-nova-agent runs here"),
        locked(tmp_path, "agent.lock"),
    ):
        pass


def test_lock_is_free_again_after_a_failure(tmp_path):
    """No descriptor is left open, and an error of the code inside is not taken for the lock's."""
    with pytest.raises(BlockingIOError), locked(tmp_path, "x"):
        raise BlockingIOError("not the lock's")

    with locked(tmp_path, "x"):
        pass


def test_state_path_that_cannot_be_written_is_one_sentence(tmp_path):
    """The folder and the remedy."""
    (tmp_path / "file").touch()
    where = tmp_path / "file" / "state"

    with (
        pytest.raises(ConfigInvalid) as caught,
        locked(where, "agent.lock"),
    ):
        pass

    assert str(caught.value) == (
        f"[agent] state_path {where} cannot be written (Not a directory): run this as root or set "
        "another folder"
    )
