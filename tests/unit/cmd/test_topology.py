# SPDX-License-Identifier: Apache-2.0
"""``amp-nova topology`` as a user sees it."""

import json

import pytest

from amp_nova.agent.operator import control_socket
from amp_nova.cmd import topology
from tests.support import machines, trees
from tests.support.tables import cells

DECLARED = (
    "the coefficient of p-core is declared by the firmware, not measured: run 'amp-nova calibrate'"
)
SMT_UNKNOWN = (
    "it is not known what a busy sibling costs on p-core, so a thread beside one counts as half a "
    "core: run 'amp-nova calibrate' or add smt=FACTOR to [topology] core_type"
)


@pytest.fixture
def run(amp):
    """Runs the command, without this host's configuration."""
    return lambda *words: amp("topology", *words)


@pytest.fixture
def hybrid(tmp_path):
    """The files of an Intel hybrid."""
    return trees.write(tmp_path / "hybrid", machines.intel_hybrid(pmus=True, offline=[19]))


def config(tmp_path, *lines):
    """A configuration file with these lines in [topology]."""
    path = tmp_path / "amp-nova.conf"
    path.write_text("\n".join(["[topology]", *lines]))
    return path


def test_json_is_the_contract(run, hybrid):
    """All keys that scripts rely on, plain lists of ids, slowest type first."""
    status, out, _ = run("--root", hybrid, "--format", "json")

    assert status == 0
    assert json.loads(out) == {
        "source": "PMU lists cpu_core, cpu_atom",
        "reference": "e-core",
        "core_types": [
            {
                "name": "e-core",
                "pcpus": list(range(12, 19)),
                "threads_per_core": 1,
                "coefficient": 1.0,
                "coefficient_source": "reference core",
                "nominal_ips": None,
                "smt_busy_factor": None,
            },
            {
                "name": "p-core",
                "pcpus": list(range(12)),
                "threads_per_core": 2,
                "coefficient": 64 / 39,
                "coefficient_source": "ACPI CPPC highest_perf",
                "nominal_ips": None,
                "smt_busy_factor": 0.5,
            },
        ],
        "offline": [19],
        "warnings": [DECLARED, SMT_UNKNOWN],
    }


def test_the_table(run, hybrid):
    """Ids as ranges; sources and warnings below it."""
    status, out, _ = run("--root", hybrid)

    assert status == 0
    assert cells(out) == [
        list(topology.COLUMNS),
        ["e-core", "12-18", "7", "1", "1.0", "reference core", "-"],
        ["p-core", "0-11", "6", "2", "1.641", "ACPI CPPC highest_perf", "-"],
    ]
    assert out.splitlines()[6:] == [
        "",
        "reference core: e-core",
        "source: PMU lists cpu_core, cpu_atom",
        "offline pCPUs: 19",
        "",
        f"warning: {DECLARED}",
        f"warning: {SMT_UNKNOWN}",
    ]


def test_unknown_coefficients_and_isolated_cpus_are_shown(run, tmp_path):
    """As unknown, and in a line below."""
    root = trees.write(tmp_path / "root", machines.zen_dense())
    (root / "sys/devices/system/cpu/isolated").write_text("2-3\n")

    _, out, _ = run("--root", root)

    assert ["fast", "0-7", "4", "2", "-", "-", "-"] in cells(out)
    assert "isolated pCPUs: 2-3" in out


def test_this_host_has_a_topology(run, tmp_path):
    """Without --root it is the machine that runs the command."""
    status, out, _ = run("--format", "json", "--config-file", config(tmp_path))

    assert status == 0
    assert json.loads(out)["core_types"]


UNKNOWN = machines.without(machines.intel_hybrid(), "highest_perf", "max_freq_khz", "base_freq_khz")


@pytest.mark.parametrize(
    ("facts", "said"),
    [(None, "{root}"), (UNKNOWN, "name the core types in [topology] core_type")],
)
def test_a_root_without_core_types_is_bad_input(run, tmp_path, facts, said):
    """It is missing, or has files that do not tell core types apart."""
    root = tmp_path / "root"
    if facts is not None:
        trees.write(root, facts)

    status, _, err = run("--root", root)

    assert status == 2
    assert said.format(root=root) in err


def test_the_configuration_of_this_host_does_not_apply_to_another(
    run, hybrid, monkeypatch, tmp_path
):
    """--root ignores the configuration files and calibration of this host."""
    home = tmp_path / "home"
    for folder in (home / ".amp-nova", home / ".amp-nova/amp-nova.conf.d"):
        folder.mkdir(parents=True)
        config(folder, "core_type = mine 0-1")
    monkeypatch.setenv("HOME", str(home))

    status, out, _ = run("--root", hybrid, "--format", "json")

    assert status == 0
    assert json.loads(out)["reference"] == "e-core"


def test_a_named_configuration_is_applied(run, hybrid, tmp_path):
    """--config-file applies to --root."""
    path = config(tmp_path, "core_type = big 0-11 1.85", "core_type = small 12-19")

    _, out, _ = run("--root", hybrid, "--config-file", path, "--format", "json")

    found = json.loads(out)
    assert found["source"] == "configuration ([topology] core_type)"
    assert [t["name"] for t in found["core_types"]] == ["small", "big"]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("core_type = big 0-11", "12-18"),
        ("core_type = Big 0-18", "'Big'"),
        ("reference = q-core", "'q-core' is not a core type of this host (it has e-core, p-core)"),
        ("no option", "configuration cannot be read"),
    ],
)
def test_a_wrong_configuration_is_bad_input(run, hybrid, tmp_path, line, named):
    """The message names the value."""
    path = config(tmp_path, line)

    status, _, err = run("--root", hybrid, "--config-file", path)

    assert status == 2
    assert named in err


def test_guests_that_contradict_the_calibration_are_a_warning(amp, tmp_path):
    """What the agent measures; within a tenth of the coefficient there is nothing to say."""
    path = config(tmp_path, "core_type = slow 0", "core_type = fast 1 2.0")
    path.write_text(path.read_text() + f"\n[agent]\nstate_path = {tmp_path}\n")
    drift = {"slow": 1.05, "fast": 1.31}
    agent = control_socket.Control(tmp_path, lambda _question: {"status": [], "drift": drift})
    try:
        _, out, _ = amp("topology", "--config-file", path)
    finally:
        agent.close()

    (line,) = (line for line in out.splitlines() if "guests" in line)
    assert line.startswith("warning: guests find core type fast 1.31 times as fast")
    assert "amp-nova calibrate" in line
