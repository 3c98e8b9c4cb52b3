# SPDX-License-Identifier: Apache-2.0
"""The configuration: an invalid value is one sentence, as soon as the file is read."""

import os
import sys
import tempfile

import pytest

from amp_nova import conf
from amp_nova.agent import wiring
from amp_nova.exceptions import ConfigInvalid


@pytest.fixture
def load(tmp_path):
    """Load a file with the given content."""

    def load_(content):
        path = tmp_path / "amp-nova.conf"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(0o640)
        return conf.load(files=[str(path)])

    return load_


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[agent] cycle_s = x", "could not convert string to float: 'x'"),
        ("[agent] cycle_s = 0", "Should be greater than or equal to 0.05"),
        ("[agent] cycle_s = nan", "give a finite number"),
        ("[agent] cycle_s =", "it is empty"),
        ("[agent] affinity = narrow", "Valid values are [core_type, pcpu], but found 'narrow'"),
        ("[exporter] port = 1.5", "invalid literal for int() with base 10: '1.5'"),
        ("[agent] state_path = here", "Value 'here' doesn't match regex '^/'"),
        ("[exporter] enabled = 2", "Unexpected boolean value '2'"),
        ("[exporter] address = a b", "a b is not a valid host address"),
    ],
)
def test_invalid_value_is_refused(load, line, reason):
    """The message names the value as written, and why oslo.config does not accept it."""
    section, _, option = line.partition(" ")
    name, _, value = option.partition(" =")

    with pytest.raises(ConfigInvalid) as caught:
        load(f"{section}\n{option}\n")

    assert str(caught.value) == f"{section} {name} ={value or ' '} is not allowed: {reason}"


def test_reference_to_a_missing_option_is_refused(load):
    """A dollar sign refers to another option, which must exist."""
    with pytest.raises(ConfigInvalid) as caught:
        load("[topology]\ncalibration_file = $nothing\n")

    assert "[topology] calibration_file is not allowed: no such option nothing" in str(caught.value)


@pytest.mark.parametrize(
    "content", ["garbage\n", "[agent\n", b"\xff\xfe\x00", "[agent]\n\n  = 3\n", "\x00"]
)
def test_invalid_file_is_one_sentence(load, tmp_path, content):
    """The message names the file, whatever is in it, and if it is missing or a directory."""
    with pytest.raises(ConfigInvalid) as caught:
        load(content)
    assert str(tmp_path / "amp-nova.conf") in str(caught.value)
    assert "\n" not in str(caught.value)

    for path in (str(tmp_path / "not-there.conf"), str(tmp_path)):
        with pytest.raises(ConfigInvalid, match=path):
            conf.load(files=[path])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_file_for_root_says_so():
    """Packages install the file for root alone, because it may hold credentials."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = f"{folder}/amp-nova.conf"
        os.close(os.open(path, os.O_CREAT, 0o600))
        os.seteuid(65534)
        try:
            with pytest.raises(ConfigInvalid) as caught:
                conf.load(files=[path])
        finally:
            os.seteuid(0)

    assert path in str(caught.value)
    assert str(caught.value).endswith("; run this as root")


@pytest.mark.parametrize(
    "line",
    [
        "[reports]\ntransport_url = rabbit://me:secret@host/",
        "[placement]\npassword=secret",
        "[placement]\napplication_credential_secret = x",
    ],
)
@pytest.mark.parametrize("mode", [0o644, 0o660, 0o606])
def test_credentials_that_others_can_read_are_refused(tmp_path, line, mode):
    """The message names the file and what to run, not the secret."""
    path = tmp_path / "amp-nova.conf"
    path.write_text(line + "\n")
    path.chmod(mode)

    with pytest.raises(ConfigInvalid) as caught:
        conf.load(files=[str(path)])

    assert f"{path} holds credentials and is open to others (mode {mode:04o})" in str(caught.value)
    assert "run chmod 0640" in str(caught.value)
    assert "secret" not in str(caught.value)
    path.chmod(0o640)
    assert conf.load(files=[str(path)])


def test_a_configuration_without_credentials_may_be_read_by_all(load, tmp_path):
    """An unset or commented one is none."""
    load("[agent]\ncycle_s = 2\n# transport_url = rabbit://\n")
    path = tmp_path / "amp-nova.conf"
    path.chmod(0o644)

    assert conf.load(files=[str(path)]).agent.cycle_s == 2.0


EVERY_LIST = """
[topology]
core_type = fast 0-1 2.0
core_type = slow 2-3
[agent]
state_path = {state}
booking = web-* amp:pref_core=0.5
booking = db-* amp:weight=2
policy = amp-adaptive-fair
policy_parameter = max_slowdown=0.3
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory whose default file sets every option that may be repeated."""
    folder = tmp_path / "home/.amp-nova"
    folder.mkdir(parents=True)
    (folder / "amp-nova.conf").write_text(EVERY_LIST.format(state=tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


@pytest.mark.parametrize("program", ["amp-nova", "amp-nova-agent", "amp-nova-status"])
def test_lists_have_every_line_once(home, monkeypatch, program):
    """oslo.config alone reads the project's file and the program's file, here the same one."""
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{program}"])

    found = conf.load()

    assert found.topology.core_type == ["fast 0-1 2.0", "slow 2-3"]
    assert found.agent.booking == ["web-* amp:pref_core=0.5", "db-* amp:weight=2"]
    assert found.agent.policy_parameter == ["max_slowdown=0.3"]
    assert wiring.policy(found).name == "amp-adaptive-fair"


def test_the_folder_of_further_files_is_read_once(home, monkeypatch):
    """Its lines follow those of the file."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/amp-nova"])
    more = home / "amp-nova.conf.d"
    more.mkdir()
    (more / "10.conf").write_text("[agent]\nbooking = x-* amp:weight=3\n")

    assert conf.load().agent.booking[2:] == ["x-* amp:weight=3"]
