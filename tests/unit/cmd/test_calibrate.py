"""``amp-nova calibrate`` as a user sees it, with a FAKE stress-ng on an idle machine."""

import dataclasses
import json
import os

import pytest

from amp_nova.cmd import calibrate as command
from amp_nova.exceptions import CountersUnavailable
from amp_nova.host.calibration import file, idleness
from amp_nova.host.calibration.idleness import Load
from amp_nova.host.calibration.stress_ng import StressNg
from amp_nova.host.counters import perf
from amp_nova.model.topology import PCpu, Topology
from tests.calibrations import fake_stress_ng, topology
from tests.tables import cells

QUICK = ("--repeat", "3", "--kernels", "integer,memory")


@pytest.fixture
def host(tmp_path, monkeypatch):
    """An idle host with a fast and a slow core type, a FAKE stress-ng and no counters."""

    def missing(*_):
        raise CountersUnavailable("this machine has no hardware counter for instructions")

    fake_stress_ng(tmp_path / "bin")
    (tmp_path / "amp.conf").write_text(
        f"[topology]\ncalibration_file = {tmp_path}/calibration.json\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(command, "load_topology", lambda conf: topology())
    monkeypatch.setattr(idleness, "loads", lambda: {0: Load(0, 0), 1: Load(0, 0)})
    monkeypatch.setattr(perf, "on_pcpu", missing)
    return tmp_path


@pytest.fixture
def calibrate(amp, host):
    """Runs the command with that host's configuration."""
    return lambda *words: amp("calibrate", "--config-file", host / "amp.conf", *QUICK, *words)


@pytest.fixture
def refused(calibrate, host):
    """The message of a refusal; nothing was measured before."""

    def refused_(*words):
        status, out, err = calibrate(*words)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("amp-nova")
        assert not (host / "bin/calls").exists()
        return err

    return refused_


def configure(host, line):
    """Add a line to ``[topology]``."""
    with (host / "amp.conf").open("a") as config:
        config.write(f"{line}\n")


def written(host, name="calibration.json"):
    return file.read(host / name)


def test_it_measures_prints_and_writes(host, calibrate):
    """The table has a row per type, slowest first, and the file holds the same."""
    status, out, err = calibrate()

    assert (status, err) == (0, "")
    assert cells(out)[1:] == [
        ["slow", "1", "1.0", "1.000..1.000", "1.0", "1.0", "None", "None"],
        ["fast", "0", "2.0", "2.000..2.000", "2.0", "2.0", "None", "None"],
    ]
    assert "no nominal Ips: this machine has no hardware counter" in out
    assert f"written to {host}/calibration.json" in out
    assert [t.name for t in written(host).core_types] == ["slow", "fast"]
    assert written(host).provenance.stress_ng_version == "0.15.06"
    assert len(written(host).samples) == 12


def test_other_forms_of_the_result(host, calibrate):
    """As a document without the samples, and in another file or in none."""
    status, out, _ = calibrate("--format", "json", "--output", host / "other.json")
    found = json.loads(out)

    assert (status, found["reference"], found["samples"]) == (0, "slow", [])
    assert found["core_types"][1]["coefficient"]["value"] == pytest.approx(2)
    assert found["core_types"][1]["nominal_ips"] is None
    assert written(host, "other.json").reference == "slow"

    assert f"not written to {host}/calibration.json" in calibrate("--no-write")[1]
    assert not (host / "calibration.json").exists()


def test_a_busy_machine_is_measured_by_force(host, calibrate, refused, monkeypatch):
    """The refusal names pCPU, load and remedy; table and file say what --force overrode."""
    monkeypatch.setattr(idleness, "loads", lambda: {0: Load(0, 0), 1: Load(0.8, 0)})
    assert refused() == (
        "amp-nova: pCPU 1, the idlest of core type 'slow', is 80% busy, and at most 5% is"
        " allowed; wait until the machine is idle, or pass --force\n"
    )
    status, out, _ = calibrate("--force")

    assert status == 0
    assert "warning: forced although pCPU 1" in out
    assert written(host).provenance.forced
    assert "80% busy" in written(host).warnings[0]


def test_a_noisy_result_is_written_by_force(host, calibrate):
    """Otherwise it is refused, and the old file stays."""
    (host / "calibration.json").write_text("old")
    fake_stress_ng(host / "bin", steal=0.4)
    status, out, err = calibrate()

    assert (status, out) == (2, "")
    assert "'integer' got only 60% of pCPU 1 in round 1" in err
    assert "nothing was written" in err
    assert (host / "calibration.json").read_text() == "old"

    assert calibrate("--force")[0] == 0
    assert "forced although 'integer' got only 60%" in written(host).warnings[0]


def test_a_disturbed_run_is_repeated(host, calibrate, monkeypatch):
    """A single one does not spoil the calibration."""
    runs = []
    run = StressNg.run

    def disturbed(self, *how):
        runs.append(how)
        sample = run(self, *how)
        return dataclasses.replace(sample, wall_s=2.0) if len(runs) == 3 else sample

    monkeypatch.setattr(StressNg, "run", disturbed)

    assert calibrate()[0] == 0
    assert len(runs) == 13
    assert all(s.cpu_share_ratio == 1 for s in written(host).samples)


def test_a_missing_stress_ng_is_reported_first(host, refused, monkeypatch):
    """The message names the remedy."""
    monkeypatch.setenv("PATH", str(host))

    assert "'stress-ng' is not installed" in refused()


@pytest.mark.parametrize(
    ("line", "arguments", "said"),
    [
        (
            "reference = old",
            [],
            "'old' is not a core type of this host, which has slow, fast",
        ),
        ("root = /recording", [], "root is '/recording', a recording; set it to '/'"),
        ("", ["--output", "/proc/self/below.json"], "cannot be written"),
        ("", ["--reference", "/no.json"], "no.json cannot be read: No such file"),
    ],
)
def test_what_cannot_succeed_is_refused_before_measuring(host, refused, line, arguments, said):
    """That takes minutes."""
    configure(host, line)

    assert said in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--seconds", "0"), "'0' is not a whole number from 1 to 3600"),
        (
            ("--kernels", "integer,tea"),
            "no kernel 'tea'; the kernels are integer, float, branch, memory",
        ),
        (("--kernels", "memory"), "no CPU-bound kernel; add one of integer, float, branch"),
        (("--kernels", ""), "no kernel ''"),
    ],
)
def test_bad_arguments_are_one_sentence(refused, arguments, said):
    """The message names the value and what is allowed."""
    assert said in refused(*arguments)


def test_an_interrupt_leaves_the_old_file(host, calibrate, monkeypatch):
    """Ctrl-C ends it at once."""
    (host / "calibration.json").write_text("old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_measure", interrupt)
    status, _, err = calibrate()

    assert status == 130
    assert "calibration.json is unchanged" in err
    assert (host / "calibration.json").read_text() == "old"


def test_a_damaged_old_file_is_ignored(host, calibrate, monkeypatch):
    """Calibrating is the remedy for a damaged file."""
    (host / "calibration.json").write_text("garbage")
    seen = []

    def load(conf):
        seen.append(conf.topology.calibration_file)
        return topology()

    monkeypatch.setattr(command, "load_topology", load)

    assert calibrate()[0] == 0
    assert seen == [""]
    assert written(host).reference == "slow"


def test_the_slowest_measured_type_is_the_reference(host, calibrate):
    """Measuring corrects a wrong order, and tells the operator to configure the reference."""
    fake_stress_ng(host / "bin", speeds={0: 1.0, 1: 4.0})
    status, out, _ = calibrate()

    assert status == 0
    assert written(host).reference == "fast"
    assert "set [topology] reference = fast" in out


def test_a_configured_reference_stays(host, calibrate):
    """It has coefficient 1 even if it is not the slowest type."""
    configure(host, "reference = fast")
    status, out, _ = calibrate()

    assert status == 0
    assert [t.coefficient.value for t in written(host).core_types] == pytest.approx([0.5, 1])
    assert "'slow' is slower than 'fast'" in out


def test_one_core_type_is_measured(host, calibrate, monkeypatch):
    """A machine with one core type has coefficient 1."""
    monkeypatch.setattr(command, "load_topology", lambda conf: topology({"core": (0, 1)}))
    status, out, _ = calibrate()

    assert status == 0
    assert cells(out)[1][:3] == ["core", "0-1", "1.0"]


def test_smt_siblings_are_measured_idle_and_busy(host, calibrate, monkeypatch):
    """Cores with two hardware threads get a factor for a busy sibling, and its range."""
    smt = topology({"core": (0, 1)})
    smt = Topology(smt.core_types, tuple(PCpu(i, "core", (0, 1)) for i in (0, 1)), "core", "test")
    monkeypatch.setattr(command, "load_topology", lambda conf: smt)
    status, out, _ = calibrate()

    assert status == 0
    assert cells(out)[1][-1] == "1.000 (1.00..1.00)"
    assert "SMT busy: speed beside busy siblings" in out
    assert "--taskset 0 --timeout 3s" in (host / "bin/calls").read_text()


@pytest.fixture
def elsewhere(host, calibrate, monkeypatch):
    """The file of a host whose one core type is half as fast as this host's slow one."""

    def elsewhere_(version="0.15.06"):
        path = host / "elsewhere.json"
        fake_stress_ng(host / "bin", speeds={0: 0.5}, version=version)
        monkeypatch.setattr(command, "load_topology", lambda conf: topology({"old": (0,)}))
        assert calibrate("--output", path)[0] == 0
        (host / "bin/calls").unlink()
        fake_stress_ng(host / "bin")
        monkeypatch.setattr(command, "load_topology", lambda conf: topology())
        return path

    return elsewhere_


def test_coefficients_relative_to_another_host(host, calibrate, refused, elsewhere):
    """With --reference, 1 is the reference core of the host that has it."""
    status, out, _ = calibrate("--reference", elsewhere())

    assert status == 0
    assert "reference core: 'old' of host" in out
    assert [t.coefficient.value for t in written(host).core_types] == pytest.approx([2, 4])
    (host / "bin/calls").unlink()
    said = refused("--reference", host / "calibration.json")
    assert "is itself relative to 'old' of host" in said


@pytest.mark.parametrize(
    ("version", "line", "kernels", "said"),
    [
        ("0.17.01", "", "integer", ["stress-ng 0.17.01", "has 0.15.06"]),
        ("0.15.06", "", "integer,float", ["no kernel 'float'", "integer,memory"]),
        ("0.15.06", "reference = ancient", "integer", ["'ancient'"]),
    ],
)
def test_a_reference_that_cannot_be_compared(
    host, refused, elsewhere, version, line, kernels, said
):
    """Another stress-ng, a kernel that it lacks, or not the configured reference core."""
    path = elsewhere(version)
    configure(host, line)

    message = refused("--reference", path, "--kernels", kernels)

    assert all(part in message for part in said)


def test_equal_names_of_two_hosts_are_kept_apart(host, calibrate, elsewhere, monkeypatch):
    """If a type of this host has the name of the reference core, that gets its host's name."""
    path = elsewhere()
    monkeypatch.setattr(command, "load_topology", lambda conf: topology({"old": (0,)}))
    calibrate("--reference", path)

    found = written(host)
    assert found.reference == f"old@{found.reference_host}"
    assert found.core_types[0].coefficient.value == pytest.approx(4)


def test_progress_is_shown_on_a_terminal(host, calibrate, monkeypatch):
    """Elsewhere it would clutter logs."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    _, _, err = calibrate()

    assert "round 1 of 3: integer on 'slow'" in err
    assert err.endswith("\r\033[K")
