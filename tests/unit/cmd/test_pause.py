"""``amp-nova pause``, ``resume`` and ``release`` as a user sees them, on a fake host."""

import json

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.agent import service
from amp_nova.agent.loop import Loop
from amp_nova.agent.operator.pause import Holds
from amp_nova.cmd.cli import main
from tests.fakehost import Node, resource

NAME = "instance-00000001"
R = resource(NAME)
HALF = {"amp:pref_core": "0.5"}


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A fake node with one limited instance."""
    (tmp_path / "host").mkdir()
    found = Node(tmp_path / "host", monkeypatch)
    found.start(specs=HALF)
    Loop(found.node, found.node).cycle()
    monkeypatch.setattr(service, "make_host", lambda conf: found.node)
    return found


@pytest.fixture
def run(node, tmp_path, capsys):
    """Runs ``amp-nova`` with a configuration for the test; exit status, output and error."""
    config = tmp_path / "amp-nova.conf"
    config.write_text(f"[agent]\nstate_path = {tmp_path}/state\n")

    def run_(command, *argv):
        try:
            status = main([command, "--config-file", str(config), *argv])
        except SystemExit as exc:
            status = exc.code
        out, err = capsys.readouterr()
        return status, out, err

    return run_


@pytest.fixture
def excluded(tmp_path):
    """The instances that are excluded now, with the reasons."""
    return lambda: dict(Holds(tmp_path / "state").current())


@pytest.mark.parametrize("name", [R, NAME, "web & shop"])
def test_pause_excludes_one_instance(run, excluded, name):
    """By UUID, libvirt name or Nova name."""
    assert run("pause", name, "--ttl", "600") == (0, f"{name} is paused for 600 s\n", "")
    assert excluded() == {R: "paused by an operator"}


@pytest.mark.parametrize("ttl", ["0", "-1", "soon", "nan", "inf", "1e10", ""])
def test_time_to_live_is_a_number_of_seconds(run, excluded, ttl):
    """Anything else is bad input."""
    status, _, err = run("pause", NAME, "--ttl", ttl)

    assert status == 2
    assert f"'{ttl}' is not a number of seconds above 0" in err
    assert excluded() == {}


@pytest.mark.parametrize("command", [["pause", "--ttl", "9"], ["resume"], ["release"]])
@pytest.mark.parametrize("name", ["nobody", "../x", "/etc/x", ""])
def test_an_unknown_instance_is_bad_input(run, excluded, tmp_path, command, name):
    """Exit status 2 and a message; no file outside the directory is touched."""
    (tmp_path / "state/holds").mkdir(parents=True)
    (tmp_path / "state/x.json").write_text("keep me")

    status, _, err = run(*command, name)

    assert status == 2
    assert f"no instance '{name}' on this host" in err
    assert excluded() == {}
    assert (tmp_path / "state/x.json").read_text() == "keep me"


def test_resume_ends_a_pause(run, excluded):
    """By any of its names."""
    run("pause", NAME, "--ttl", "600")

    assert run("resume", NAME) == (0, f"{NAME} is controlled again\n", "")
    assert excluded() == {}


def test_resume_of_an_instance_that_left_needs_its_uuid_alone(run, excluded, node):
    """The pause is a file, so the instance need not be on this host."""
    run("pause", NAME, "--ttl", "600")
    node.libvirt.known.clear()

    assert run("resume", R)[0] == 0
    assert excluded() == {}


def test_resume_without_a_pause_is_the_answer_no(run):
    """Exit status 1 and a message."""
    assert run("resume", NAME) == (
        1,
        "",
        f"amp-nova: {NAME} was neither paused nor released\n",
    )


def test_release_restores_and_excludes(run, excluded, node):
    """No setting of amp-nova is left, and the agent does not control the instance."""
    assert run("release", NAME) == (0, f"released {NAME}\n1 released, 0 leftovers\n", "")
    assert node.host.limit() == "max 100000"
    assert excluded() == {R: "released; 'amp-nova resume' takes it back"}


def test_release_of_all_instances_with_amp_keys(run, node):
    """Instances without amp:* keys are not released."""
    node.start("other", pid=4100)

    status, out, _ = run("release", "--format", "json")

    assert status == 0
    assert json.loads(out) == {"released": [NAME], "leftovers": []}


def test_leftovers_are_the_answer_no(run, node):
    """Exit status 1, and one message for each leftover."""
    node.kernel.refuse = {"cpu.max": 30}

    status, out, err = run("release")

    assert (status, out.splitlines()[-1]) == (1, "1 released, 2 leftovers")
    assert err.splitlines() == [
        f"amp-nova: {NAME}: vCPU {i} cannot be changed: Read-only file system" for i in range(2)
    ]


def test_a_missing_libvirt_binding_is_bad_input(run, monkeypatch):
    """The message says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "amp_nova.agent.service", None)
    monkeypatch.delattr("amp_nova.agent.service", raising=False)

    for command in (["pause", NAME, "--ttl", "9"], ["release"]):
        status, _, err = run(*command)
        assert (status, err) == (
            2,
            "amp-nova: libvirt's Python binding is missing: install amp-nova[agent]\n",
        )
