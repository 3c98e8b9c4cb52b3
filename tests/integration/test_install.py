"""An sdist and the wheel made from it install into a new environment and run there."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import amp_nova

ROOT = Path(amp_nova.__file__).parent.parent


def run(*words: str | Path, **variables: str) -> str:
    done = subprocess.run(
        [str(w) for w in words],
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    # Version said: neither tags nor git's trust in the owner of the checkout is what is tested.
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, PBR_VERSION="1.2.3")
    return folder


def test_the_sdist_carries_what_a_build_needs(dist):
    """Licence, requirements and the sample configuration are in the sdist."""
    with tarfile.open(dist / "amp_nova-1.2.3.tar.gz") as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}

    wanted = {"LICENSE", "README.rst", "requirements.txt", "etc/amp-nova/amp-nova.conf.sample"}
    assert wanted <= names


def test_the_wheel_carries_every_module_and_nothing_else(dist):
    """Each module of the package, and no test, is in the wheel."""
    with zipfile.ZipFile(dist / "amp_nova-1.2.3-py3-none-any.whl") as wheel:
        modules = {name for name in wheel.namelist() if name.endswith(".py")}

    files = (ROOT / "amp_nova").rglob("*.py")
    assert modules == {path.relative_to(ROOT).as_posix() for path in files}


def test_the_wheel_installs_and_runs(dist, tmp_path):
    """A new environment with the wheel alone answers the first commands of the README."""
    venv.create(tmp_path / "venv", with_pip=True)
    bin_ = tmp_path / "venv/bin"

    run(bin_ / "python", "-m", "pip", "install", "--quiet", *dist.glob("*.whl"))

    assert run(bin_ / "amp-nova", "--version") == "amp-nova 1.2.3\n"
    assert "0.5" in run(bin_ / "amp-nova", "flavor", "check", "amp:pref_core=0.5")
    assert (tmp_path / "venv/etc/amp-nova/amp-nova.conf.sample").exists()
