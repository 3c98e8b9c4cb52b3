# SPDX-License-Identifier: Apache-2.0
"""The Tempest plugin, as Tempest finds it; ``tests/e2e/test_tempest.py`` runs its tests.

In processes of their own: Tempest and Nova register their options in the same place.
"""

import re
import sys
from pathlib import Path

import pytest

import amp_nova
from tests.support.programs import run

BIN = Path(sys.executable).parent
ROOT = Path(amp_nova.__file__).parent.parent
PLUGIN = "amp_nova_tempest_plugin"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """What ``tempest init`` makes."""
    folder = tmp_path_factory.mktemp("tempest")
    words = ("init", "--workspace-path", folder / "workspaces.yaml", "cloud")
    run(BIN / "tempest", *words, cwd=folder)
    return folder / "cloud"


@pytest.fixture(scope="module")
def options(workspace):
    """The defaults of the plugin's options, as Tempest's sample configuration shows them."""
    sample = (workspace / "etc/tempest.conf.sample").read_text()
    section = re.search(r"^\[amp_nova\]$(.*?)(?=^\[|\Z)", sample, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^#(\w+) = (.+)$", section[1], re.MULTILINE))


def test_tempest_lists_the_plugin(workspace):
    """By the entry point that setup.cfg names."""
    listed = run(BIN / "tempest", "list-plugins", cwd=workspace)

    assert f"{PLUGIN}.plugin:AmpNovaTempestPlugin" in listed


def test_tempest_has_the_options_of_the_plugin(options):
    """A cloud on x86 whose agents claim needs one of them only."""
    assert {name for name, default in options.items() if default == "<None>"} == {
        "prometheus_url",
        "image_ref",
    }
    assert options["claims"] == "true"


def test_every_option_is_documented(options):
    """Where an operator reads how to run the plugin."""
    page = (ROOT / "doc/source/admin/verify.rst").read_text()

    assert [name for name in options if f"``{name}``" not in page] == []


def test_tempest_finds_the_tests(workspace):
    """All of them by the plugin's name, each with an id that no other test has."""
    words = ("run", "--list-tests", "--regex", "amp_nova")
    listed = run(BIN / "tempest", *words, cwd=workspace)

    found = re.findall(rf"^{PLUGIN}\.tests\.\w+\.\w+\.(test_\w+)\[id-", listed, re.MULTILINE)
    files = (ROOT / PLUGIN / "tests").glob("test_*.py")
    written = [name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())]
    assert written
    assert sorted(found) == sorted(written)
    run(BIN / "check-uuid", "--package", PLUGIN, cwd=ROOT)
