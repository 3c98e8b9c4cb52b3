# SPDX-License-Identifier: Apache-2.0
"""An sdist and the wheel made from it install into a new environment and run there."""

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import amp_nova
from tests.support.programs import run

ROOT = Path(amp_nova.__file__).parent.parent
VERSION = re.search(r"^version = (.*)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)[1]
MODULE = re.compile(r"amp_nova(_lab|_tempest_plugin)?/.*\.py")


def shipped() -> set[str]:
    """What operators get besides the commands: unit, samples, rules, dashboards."""
    files = (path for path in (ROOT / "etc").rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in files}


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


def a_shallow_clone(folder: Path) -> None:
    run("git", "clone", "--depth=1", ROOT.as_uri(), folder)


def an_archive(folder: Path) -> None:
    run("git", "-C", ROOT, "archive", f"--output={folder}.tar", "HEAD")
    with tarfile.open(f"{folder}.tar") as tar:
        tar.extractall(folder, filter="data")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="there is nothing to clone")
@pytest.mark.parametrize("tree", [a_shallow_clone, an_archive], ids=lambda tree: tree.__name__)
def test_a_tree_without_history_makes_the_same_wheel(dist, tmp_path, tree):
    """The version is the one in ``setup.cfg``, and no module is missing."""
    tree(tmp_path / "tree")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, tmp_path / "tree")

    committed = set(run("git", "-C", ROOT, "ls-tree", "-r", "--name-only", "HEAD").splitlines())
    with zipfile.ZipFile(tmp_path / f"amp_nova-{VERSION}-py3-none-any.whl") as wheel:
        modules = {name for name in wheel.namelist() if name.endswith(".py")}
    assert modules == {name for name in committed if MODULE.fullmatch(name)}


def test_the_sdist_carries_what_a_build_needs(dist):
    """Licence, requirements and the sample configuration are in the sdist."""
    with tarfile.open(dist / f"amp_nova-{VERSION}.tar.gz") as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}

    assert {"LICENSE", "README.rst", "requirements.txt", *shipped()} <= names
    assert "packaging/debian/control" in names


def test_the_wheel_carries_every_module_and_nothing_else(dist):
    """Each module of the three packages, and no other test, is in the wheel."""
    with zipfile.ZipFile(dist / f"amp_nova-{VERSION}-py3-none-any.whl") as wheel:
        modules = {name for name in wheel.namelist() if name.endswith(".py")}

    packages = ("amp_nova", "amp_nova_lab", "amp_nova_tempest_plugin")
    files = (path for package in packages for path in (ROOT / package).rglob("*.py"))
    assert modules == {path.relative_to(ROOT).as_posix() for path in files}


@pytest.fixture(scope="module")
def installed(dist, tmp_path_factory) -> Path:
    """A new environment with the wheel alone."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    wheel = next(dist.glob("*.whl"))
    run(
        folder / "bin/python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        f"amp-nova[agent] @ file://{wheel}",
    )
    return folder


def test_the_wheel_installs_and_runs(installed):
    """A new environment with the wheel alone answers the first commands of the README."""
    bin_ = installed / "bin"

    assert run(bin_ / "amp-nova", "--version") == f"amp-nova {VERSION}\n"
    assert run(bin_ / "amp-nova-agent", "--version") == f"amp-nova-agent {VERSION}\n"
    assert run(bin_ / "amp-nova-status", "--version") == f"amp-nova-status {VERSION}\n"
    assert "0.5" in run(bin_ / "amp-nova", "flavor", "check", "amp:pref_core=0.5")


def test_the_wheel_carries_what_operators_configure(installed):
    """The unit, the samples, and whatever else is in etc/, under the environment's own etc/."""
    assert {
        "etc/amp-nova/amp-nova-agent.service",
        "etc/amp-nova/amp-scheduler.conf.sample",
    } <= shipped()
    assert [name for name in shipped() if not (installed / name).is_file()] == []


COMMANDS = [
    # words, exit status, and a word of the answer
    ("amp-nova topology", 0, "fast"),
    ("amp-nova calibrate --repeat 1 --seconds 2 --force", 0, "fast"),
    ("amp-nova selftest --seconds 0", 2, "from 1 to 60"),
    ("amp-nova status", 1, "start amp-nova-agent"),
    ("amp-nova explain x", 1, "start amp-nova-agent"),
    ("amp-nova pause x --ttl 60", 2, "start libvirt"),
    ("amp-nova resume x", 2, "start libvirt"),
    ("amp-nova release x", 2, "libvirt"),
    ("amp-nova release --all", 2, "libvirt"),
    ("amp-nova flavor check amp:pref_core=0.5", 0, "pref_core"),
    (f"amp-nova simulate {ROOT}/doc/source/user/two-vms.yaml", 0, "throughput"),
    (f"amp-nova compare {ROOT}/doc/source/user/two-vms.yaml --policy credit", 0, "unfairness"),
    (f"amp-nova whatif {ROOT}/doc/source/user/two-vms.yaml --policy hsp", 0, "unfairness"),
    ("amp-nova survey http://127.0.0.1:9 --booking x=amp:pref_core=1", 2, "does not answer"),
    ("amp-nova probe --duration 1", 2, "from 10 to 600"),
    ("amp-nova record --duration 2s -o host.yaml", 2, "libvirt"),
    ("amp-nova reproduce kumar2009", 0, "Published"),
    ("amp-nova demo --duration 4", 0, "delivered"),
    ("amp-nova complete", 0, "amp-nova"),
    ("amp-nova help status", 0, "--watch"),
    ("amp-nova-agent --once", 2, "libvirt"),
    ("amp-nova-status upgrade check", 1, "Core types and calibration"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A home with a default file that sets every option that may be repeated."""
    folder = tmp_path_factory.mktemp("home")
    (folder / ".amp-nova").mkdir()
    count = len(os.sched_getaffinity(0))
    (folder / ".amp-nova/amp-nova.conf").write_text(
        f"""
[topology]
core_type = fast 0 2.0 smt=0.55
core_type = slow {",".join(map(str, range(1, count)))}
calibration_file = {folder}/calibration.json
[agent]
state_path = {folder}
libvirt_uri = qemu+unix:///system?socket={folder}/no-libvirt
booking = web-* amp:pref_core=0.5
booking = db-* amp:weight=2
policy = amp-adaptive-fair
policy_parameter = max_slowdown=0.3
"""
    )
    return folder


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one pCPU is not of two core types")
@pytest.mark.parametrize(("words", "status", "said"), COMMANDS, ids=[c[0] for c in COMMANDS])
def test_every_command_works_with_the_default_file_alone(installed, home, words, status, said):
    """As installed and as typed: no list is read twice, and what is missing is said."""
    done = subprocess.run(
        [installed / "bin" / words.split()[0], *words.split()[1:]],
        env={"HOME": str(home), "PATH": "/nowhere", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == status, done.stderr
    assert said in done.stdout + done.stderr
    assert "twice" not in done.stderr
    assert "Traceback" not in done.stderr


def test_every_command_was_tried(installed):
    """A new command belongs into the list above."""
    program = "from amp_nova.cmd import cli; print(*cli.COMMANDS, sep='\\n')"
    listed = run(installed / "bin/python", "-c", program).splitlines()
    tried = [words for words, _, _ in COMMANDS if words.startswith("amp-nova ")]

    assert [c for c in listed if not any(f"{w} ".startswith(f"amp-nova {c} ") for w in tried)] == []
