# SPDX-License-Identifier: Apache-2.0
"""What an installed amp-nova offers: commands, entry points, a sample configuration."""

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from oslo_config import generator
from packaging.requirements import Requirement

import amp_nova
from amp_nova.cmd import agent, cli, upgrade
from tools.cloud.layout import NEWEST

ROOT = Path(amp_nova.__file__).parent.parent
NOVA_PAGES = ("fit", "install", "packages", "upgrade")
SUBCOMMANDS = [[], *(name.split() for name in cli.COMMANDS)]

HEAVY = ("cmd2", "libvirt", "msgspec", "oslo_config", "prettytable", "prometheus_client", "yaml")
"""What takes long to import."""


@pytest.mark.parametrize("words", SUBCOMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_has_a_version(words, capsys):
    """``--help`` shows how it is typed; ``--version`` is the one that the package index knows."""
    with pytest.raises(SystemExit) as stop:
        cli.main([*words, "--help"])

    assert stop.value.code == 0
    assert "amp-nova " + " ".join(words) in capsys.readouterr().out.partition("xample")[2]
    with pytest.raises(SystemExit):
        cli.main([*words, "--version"])
    assert capsys.readouterr().out == f"amp-nova {importlib.metadata.version('amp-nova')}\n"


def test_the_agent_explains_itself_with_an_example(capsys):
    """As the commands do."""
    with pytest.raises(SystemExit) as stop:
        agent.main(["--help"])

    assert stop.value.code == 0
    assert "amp-nova-agent" in capsys.readouterr().out.partition("xample")[2]


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["--help"], ()),
        (["flavor", "check", "amp:pref_core=1"], ("prettytable",)),
        (["status"], ("msgspec", "oslo_config", "prettytable")),
    ],
    ids=lambda words: " ".join(words),
)
def test_quick_commands_import_little(words, allowed):
    """Help and answers come at once: what is slow to import is not imported."""
    program = f"""
import sys
from amp_nova.cmd import cli
try:
    cli.main({words!r})
except SystemExit:
    pass
print(*sorted(sys.modules), file=sys.stderr)
"""
    # -S leaves out what an editable installation imports at the start of Python.
    paths = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    imported = set(done.stderr.splitlines()[-1].split())

    assert "amp_nova.cmd.cli" in imported
    assert {*HEAVY} & imported <= {*allowed}
    commands = {m for m in imported if m.startswith("amp_nova.cmd.")}
    assert "amp_nova.cmd.calibrate" not in commands


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("amp-nova stat", ["status"]),
        ("amp-nova status --form", ["--format"]),
        ("amp-nova status --sort-c", ["--sort-column"]),
        ("amp-nova flavor ", ["check"]),
        ("amp-nova simulate doc/source/user/two-v", ["doc/source/user/two-vms.yaml"]),
    ],
)
def test_bash_completes_a_line(words, completed, capsys):
    """Commands, options and files, with the functions of Debian's bash-completion."""
    assert cli.main(["complete"]) == 0
    typed = words.split(" ")
    ask = f"""
_get_comp_words_by_ref() {{ words=({shlex.join(typed)}); cur=${{words[-1]}}; prev=${{words[-2]}}; }}
{capsys.readouterr().out}
_amp_nova; printf '%s\\n' "${{COMPREPLY[@]}}"
"""

    done = subprocess.run(["bash"], input=ask, capture_output=True, text=True, check=True, cwd=ROOT)

    assert done.stdout.split() == completed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["statsu"], "amp-nova: there is no command 'statsu': did you mean 'status'?"),
        (["zzz"], "amp-nova: there is no command 'zzz'; see 'amp-nova --help'"),
        (["--debug", "zzz"], "amp-nova: there is no command 'zzz'; see 'amp-nova --help'"),
        ([], "amp-nova: the following arguments are required: COMMAND"),
        (["help", "zzz"], "amp-nova: there is no command 'zzz'; see 'amp-nova --help'"),
        (["re"], "amp-nova: there is no command 're'; see 'amp-nova --help'"),
        (["--zzz"], "amp-nova: there is no command '--zzz'; see 'amp-nova --help'"),
        (["flavor"], "amp-nova: there is no command 'flavor': did you mean 'flavor check'?"),
        (["status", "--zzz"], "amp-nova status: unrecognized arguments: --zzz; see 'amp-nova st"),
    ],
)
def test_a_misspelt_word_is_named_with_what_was_meant(words, said, capsys):
    """Exit status 2 and one sentence."""
    try:
        status = cli.main(words)
    except SystemExit as stop:
        status = stop.code

    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


def entry_points():
    # What Nova and Tempest load is loaded where they are: in the functional tests.
    found = importlib.metadata.distribution("amp-nova").entry_points
    return [e for e in found if not e.group.startswith(("nova.", "tempest."))]


@pytest.mark.parametrize("entry_point", entry_points(), ids=lambda e: f"{e.group}:{e.name}")
def test_every_entry_point_leads_somewhere(entry_point):
    """No entry point names a module or an attribute that is not there."""
    found = entry_point.load()
    assert callable(found if entry_point.attr else found.make_client)


SAMPLES = {"amp-nova": ["amp_nova"], "amp-scheduler": ["amp_nova.scheduler"]}


def own_options(sample, namespaces):
    """The text between the headings of these namespaces and the next heading, by section."""
    parts = re.split(r"^\[(.+)\]$", sample, flags=re.MULTILINE)[1:]
    return {
        (section, name): body.strip()
        for section, text in zip(parts[::2], parts[1::2], strict=True)
        for name, body in re.findall(
            r"^# From (\S+)\n#\n(.*?)(?=^#\n# From |\Z)", text, re.MULTILINE | re.DOTALL
        )
        if name in namespaces
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_the_sample_configuration_is_up_to_date(name, tmp_path):
    """The sample has what ``tox -e genconfig`` writes of amp-nova's own options.

    Those of other libraries depend on the versions installed.
    """
    config = ROOT / f"tools/config-generator/{name}.conf"

    generator.main(["--config-file", str(config), "--output-file", str(tmp_path / "sample")])

    fresh = own_options((tmp_path / "sample").read_text(), SAMPLES[name])
    assert fresh
    sample = (ROOT / f"etc/amp-nova/{name}.conf.sample").read_text()
    assert own_options(sample, SAMPLES[name]) == fresh


def depends(package):
    """The dependencies of a Debian package, as in its control file."""
    control = (ROOT / "packaging/debian/control").read_text()
    stanza = next(s for s in control.split("\n\n") if s.startswith(f"Package: {package}\n"))
    return set(re.findall(r"^ ([a-z][a-z0-9.-]+)", stanza.partition("\nDepends:")[2], re.MULTILINE))


@pytest.mark.parametrize(
    ("package", "extra"), [("python3-amp-nova", ""), ("amp-nova-agent", "agent")]
)
def test_debian_packages_depend_on_what_python_packages_require(package, extra):
    """Requirements of the plain package and of the extra, by the names that Debian gives them."""
    renamed = {"pyyaml": "yaml", "libvirt-python": "libvirt"}
    found = [Requirement(line) for line in importlib.metadata.requires("amp-nova") or []]
    plain = {r.name.lower() for r in found if r.marker is None}
    more = {r.name.lower() for r in found if r.marker and r.marker.evaluate({"extra": extra})}
    wanted = more if extra else plain

    assert wanted
    assert {f"python3-{renamed.get(name, name)}" for name in wanted} <= depends(package)


def expanded(section):
    """The environments of a section such as ``py-{1,2}{,-x}``."""
    start, brace, rest = section.partition("{")
    choices, _, end = rest.partition("}")
    if not brace:
        return [section]
    return [start + each + more for each in choices.split(",") for more in expanded(end)]


@pytest.mark.parametrize("page", ["README", *(f"doc/source/admin/{p}" for p in NOVA_PAGES)])
def test_every_page_names_the_tested_releases_of_nova(page):
    """None of them another range."""
    found = re.findall(r"Nova (\d+) to (\d+)", (ROOT / f"{page}.rst").read_text())

    assert {*found} == {(str(upgrade.TESTED[0]), str(upgrade.TESTED[-1]))}


def test_the_mini_cloud_runs_every_tested_release_of_nova():
    """Each has its requirements, which ``tox`` takes as well; the newest needs no ``--nova``."""
    files = {int(path.stem): path.read_text() for path in (ROOT / "tools/novas").glob("*.txt")}
    tox = (ROOT / "tox.ini").read_text()

    assert sorted(files) == [*upgrade.TESTED]
    for major, text in files.items():
        assert f"\nnova>={major},<{major + 1}\n" in text
        assert f"\n    {major}: -r tools/novas/{major}.txt\n" in tox
        release = f"{2024 + (major - 29) // 2}.{(major - 29) % 2 + 1}"
        assert f"\n    {major}-upper: -c {{[upper]constraints}}/{release}\n" in tox
    assert upgrade.TESTED[-1] == NEWEST
    assert f"\nnova=={NEWEST}." in (ROOT / "tools/cloud/requirements.txt").read_text()
    assert f"\nnewest={NEWEST}\n" in (ROOT / "tools/minicloud").read_text()


@pytest.mark.parametrize("extra", ["nova", "functional"])
def test_the_tested_releases_of_nova_can_be_installed(extra):
    """No older one, and for the tests no newer one."""
    found = [Requirement(line) for line in importlib.metadata.requires("amp-nova") or []]
    (nova,) = (
        each.specifier
        for each in found
        if each.name == "nova" and each.marker and each.marker.evaluate({"extra": extra})
    )
    majors = [*range(20, 40)]

    allowed = [major for major in majors if nova.contains(f"{major}.0.0")]
    if extra == "nova":
        assert allowed == majors[majors.index(upgrade.TESTED[0]) :]
    else:
        assert allowed == [*upgrade.TESTED]


def test_the_packages_have_modules_alone():
    """Built without git, as for Debian, pbr leaves out every other file."""
    listed = subprocess.run(
        ["git", "ls-files", "amp_nova", "amp_nova_lab", "amp_nova_tempest_plugin"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [name for name in listed.stdout.split() if not name.endswith(".py")] == []
