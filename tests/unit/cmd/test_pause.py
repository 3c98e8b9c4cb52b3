# SPDX-License-Identifier: Apache-2.0
"""``amp-nova pause``, ``resume`` and ``release`` as a user sees them, on a fake host."""

import json
import sys

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.agent.loop import Loop
from amp_nova.agent.operator.release import WHY
from amp_nova.guard.pauses import Pauses
from tests.support.fakehost import resource
from tests.support.tables import cells

NAME = "instance-00000001"
R = resource(NAME)
HALF = {"amp:pref_core": "0.5"}


@pytest.fixture(autouse=True)
def _limited(node):
    """An instance with its limits in force."""
    node.start(specs=HALF)
    Loop(node.sensor, node.writer).cycle()


@pytest.fixture
def excluded(tmp_path):
    """The instances that are excluded now, with the reasons."""
    return lambda: dict(Pauses(tmp_path / "state").current())


def test_pause_excludes_one_instance(run, excluded):
    """By its Nova name here; other tests use UUID and libvirt name."""
    said = "web & shop is paused for 600 s\n"
    assert run("pause", "web & shop", "--ttl", "600") == (0, said, "")
    assert excluded() == {R: "paused by an operator"}


@pytest.mark.parametrize("ttl", ["0", "soon", "nan", "1e10"])
def test_time_to_live_is_a_number_of_seconds(run, excluded, ttl):
    """Anything else is bad input."""
    status, _, err = run("pause", NAME, "--ttl", ttl)

    assert status == 2
    assert f"'{ttl}' is not a number from 0.1 to 1e+09" in err
    assert excluded() == {}


@pytest.mark.parametrize("command", [["pause", "--ttl", "9"], ["resume"], ["release"]])
@pytest.mark.parametrize("name", ["../x", "/etc/x"])
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
    """By any of its names; without a pause it is the answer no."""
    run("pause", NAME, "--ttl", "600")

    assert run("resume", NAME) == (0, f"{NAME} is managed again\n", "")
    assert excluded() == {}
    said = f"amp-nova: {NAME} was neither paused nor released\n"
    assert run("resume", NAME) == (1, "", said)


def test_resume_of_an_instance_that_left_needs_its_uuid_alone(run, excluded, node):
    """The pause is a file, so the instance need not be on this host."""
    run("pause", NAME, "--ttl", "600")
    node.libvirt.known.clear()

    assert run("resume", R)[0] == 0
    assert excluded() == {}


def test_release_restores_and_excludes(run, excluded, node):
    """No setting of amp-nova is left, and the agent does not manage the instance."""
    status, out, err = run("release", NAME)

    assert (status, err) == (0, "")
    changes = [[f"{NAME} vCPU {i}", "pCPUs 0-3, no quota"] for i in range(2)]
    assert cells(out)[1:] == [*changes, [NAME, "CPU weight 100"]]
    assert out.endswith(f"released {NAME}\n1 released, 0 leftovers\n")
    assert [node.host.limit(index=i) for i in range(2)] == ["max 100000"] * 2
    assert excluded() == {R: WHY}


def test_release_of_all_instances_with_amp_keys(run, node):
    """Instances without amp:* keys are not released."""
    node.start("other", pid=4100)

    status, out, _ = run("release", "--all", "--format", "json")

    assert status == 0
    changes = [f"{NAME} vCPU {i}: pCPUs 0-3, no quota" for i in range(2)]
    changes += [f"{NAME}: CPU weight 100"]
    assert json.loads(out) == {"released": [NAME], "changes": changes, "leftovers": []}


@pytest.mark.parametrize("arguments", [[], ["--all", NAME], ["--dry-run"]])
def test_release_needs_instances_or_all(run, node, excluded, arguments):
    """Neither or both: exit status 2, one sentence, and nothing is released."""
    writes = node.kernel.writes

    assert run("release", *arguments) == (
        2,
        "",
        "amp-nova: release: give either INSTANCE... or --all\n",
    )
    assert node.kernel.writes == writes
    assert excluded() == {}


def test_dry_run_of_a_release_changes_nothing(run, node, excluded):
    """It lists what a release would change."""
    writes = node.kernel.writes

    status, out, err = run("release", "--all", "--dry-run")

    assert (status, err) == (0, "")
    assert out.endswith("+\n1 to release, 0 leftovers\n")
    assert (node.kernel.writes, excluded()) == (writes, {})
    assert cells(run("release", "--all")[1]) == cells(out)


def test_leftovers_are_the_answer_no(run, node):
    """Exit status 1, and one message for each leftover."""
    node.kernel.refuse = {"cpu.max": 30}

    status, out, err = run("release", "--all")

    assert (status, out.splitlines()[-1]) == (1, "1 released, 2 leftovers")
    assert err.splitlines() == [
        f"amp-nova: {NAME}: vCPU {i} cannot be changed: Read-only file system" for i in range(2)
    ]


def test_a_missing_libvirt_binding_is_bad_input(run, monkeypatch):
    """The message says what to install, where nothing is recorded either."""
    monkeypatch.setitem(sys.modules, "amp_nova.agent.wiring", None)
    monkeypatch.delattr("amp_nova.agent.wiring", raising=False)

    for command in (["pause", NAME, "--ttl", "9"], ["release", NAME], ["release", "--all"]):
        status, _, err = run(*command)
        assert status == 2
        assert "libvirt's Python binding is missing: install amp-nova[agent]" in err
        assert err.count("\n") == 1
