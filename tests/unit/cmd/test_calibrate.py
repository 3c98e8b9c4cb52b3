"""``amp-nova calibrate`` as a user sees it, with a FAKE stress-ng on an idle machine."""

import dataclasses
import json
import os

import pytest

from amp_nova.cmd import calibrate as command
from amp_nova.cmd import cli
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


def amp_nova(host, capsys, *arguments, conf="amp.conf"):
    """Exit status, standard output, standard error."""
    try:
        status = cli.main(["calibrate", "--config-file", str(host / conf), *QUICK, *arguments])
    except SystemExit as exc:
        status = exc.code
    out, err = capsys.readouterr()
    return status, out, err


def refused(host, capsys, *arguments, conf="amp.conf"):
    """The message of a refusal; nothing was measured before."""
    status, out, err = amp_nova(host, capsys, *arguments, conf=conf)
    assert (status, out) == (2, "")
    assert err.startswith("amp-nova")
    assert err.count("\n") == 1
    assert not (host / "bin/calls").exists()
    return err


def written(host, name="calibration.json"):
    return file.read(host / name)


def test_it_measures_prints_and_writes(host, capsys):
    """The table has a row per type, slowest first, and the file holds the same."""
    status, out, err = amp_nova(host, capsys)

    assert (status, err) == (0, "")
    assert cells(out)[1:] == [
        ["slow", "1", "1.0", "1.000..1.000", "1.0", "1.0", "None", "None"],
        ["fast", "0", "2.0", "2.000..2.000", "2.0", "2.0", "None", "None"],
    ]
    assert "no nominal Ips: this machine has no hardware counter" in out
    assert f"written to {host}/calibration.json" in out
    assert [t.name for t in written(host).core_types] == ["slow", "fast"]
    assert written(host).provenance.stress_ng_version == "0.15.06"


def test_json_is_the_file_without_the_samples(host, capsys):
    """Scripts read the same values as in the file."""
    status, out, _ = amp_nova(host, capsys, "--format", "json")
    found = json.loads(out)

    assert status == 0
    assert found["reference"] == "slow"
    assert found["core_types"][1]["coefficient"]["value"] == pytest.approx(2)
    assert found["core_types"][1]["nominal_ips"] is None
    assert found["samples"] == []
    assert len(written(host).samples) == 12


def test_no_write_writes_nothing(host, capsys):
    """--no-write measures, prints the results and leaves no file."""
    status, out, _ = amp_nova(host, capsys, "--no-write")

    assert status == 0
    assert f"not written to {host}/calibration.json" in out
    assert not (host / "calibration.json").exists()


def test_output_names_another_file(host, capsys):
    """--output overrides the configured file."""
    assert amp_nova(host, capsys, "--output", str(host / "other.json"))[0] == 0

    assert written(host, "other.json").reference == "slow"
    assert not (host / "calibration.json").exists()


def test_a_busy_machine_is_refused(host, capsys, monkeypatch):
    """The message names the pCPU, its load and the remedy."""
    monkeypatch.setattr(idleness, "loads", lambda: {0: Load(0, 0), 1: Load(0.8, 0)})

    assert refused(host, capsys) == (
        "amp-nova: pCPU 1, the idlest of core type 'slow', is 80% busy, and at most 5% is"
        " allowed; wait until the machine is idle, or pass --force\n"
    )


def test_force_measures_a_busy_machine_with_a_warning(host, capsys, monkeypatch):
    """Table and file contain the reason that --force overrode."""
    monkeypatch.setattr(idleness, "loads", lambda: {0: Load(0, 0), 1: Load(0.8, 0)})
    status, out, _ = amp_nova(host, capsys, "--force")

    assert status == 0
    assert "warning: forced although pCPU 1" in out
    assert written(host).provenance.forced
    assert "80% busy" in written(host).warnings[0]


def test_a_noisy_result_is_not_written(host, capsys):
    """A disturbed measurement is refused, and the old file stays."""
    (host / "calibration.json").write_text("old")
    fake_stress_ng(host / "bin", steal=0.4)
    status, out, err = amp_nova(host, capsys)

    assert (status, out) == (2, "")
    assert "'integer' got only 60% of pCPU 1 in round 1" in err
    assert "nothing was written" in err
    assert (host / "calibration.json").read_text() == "old"


def test_a_disturbed_run_is_repeated(host, capsys, monkeypatch):
    """A single one does not spoil the calibration."""
    runs = []
    run = StressNg.run

    def disturbed(self, *how):
        runs.append(how)
        sample = run(self, *how)
        return dataclasses.replace(sample, wall_s=2.0) if len(runs) == 3 else sample

    monkeypatch.setattr(StressNg, "run", disturbed)

    assert amp_nova(host, capsys)[0] == 0
    assert len(runs) == 13
    assert all(s.cpu_share_ratio == 1 for s in written(host).samples)


def test_a_noisy_result_is_written_by_force(host, capsys):
    """--force writes a noisy result, marked as such."""
    fake_stress_ng(host / "bin", steal=0.4)

    assert amp_nova(host, capsys, "--force")[0] == 0
    assert "forced although 'integer' got only 60%" in written(host).warnings[0]


def test_a_missing_stress_ng_is_reported_first(host, capsys, monkeypatch):
    """The message names the remedy."""
    monkeypatch.setenv("PATH", str(host))

    assert "'stress-ng' is not installed" in refused(host, capsys)


def test_an_unwritable_file_is_reported_before_measuring(host, capsys):
    """A missing permission does not waste minutes of measuring."""
    (host / "file").write_text("")

    assert "cannot be written" in refused(host, capsys, "--output", str(host / "file/below.json"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--seconds", "0"), "'0' is not a whole number from 1 to 3600"),
        (("--seconds", "0.5"), "'0.5' is not a whole number"),
        (("--repeat", "-1"), "'-1' is not a whole number"),
        (("--repeat", "9" * 5000), "is not a whole number"),
        (
            ("--kernels", "integer,tea"),
            "no kernel 'tea'; the kernels are integer, float, branch, memory",
        ),
        (("--kernels", "memory"), "no CPU-bound kernel; add one of integer, float, branch"),
        (("--kernels", ""), "no kernel ''"),
    ],
)
def test_bad_arguments_are_one_sentence(host, capsys, arguments, said):
    """The message names the value and what is allowed."""
    assert said in refused(host, capsys, *arguments)


def test_an_interrupt_leaves_the_old_file(host, capsys, monkeypatch):
    """Ctrl-C ends it at once."""
    (host / "calibration.json").write_text("old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_measure", interrupt)
    status, _, err = amp_nova(host, capsys)

    assert status == 130
    assert "calibration.json is unchanged" in err
    assert (host / "calibration.json").read_text() == "old"


def test_a_damaged_old_file_is_ignored(host, capsys, monkeypatch):
    """Calibrating is the remedy for a damaged file."""
    (host / "calibration.json").write_text("garbage")
    seen = []

    def load(conf):
        seen.append(conf.topology.calibration_file)
        return topology()

    monkeypatch.setattr(command, "load_topology", load)

    assert amp_nova(host, capsys)[0] == 0
    assert seen == [""]
    assert written(host).reference == "slow"


def test_the_slowest_measured_type_is_the_reference(host, capsys):
    """Measuring corrects a wrong order, and tells the operator to configure the reference."""
    fake_stress_ng(host / "bin", speeds={0: 1.0, 1: 4.0})
    status, out, _ = amp_nova(host, capsys)

    assert status == 0
    assert written(host).reference == "fast"
    assert "set [topology] reference = fast" in out


def test_a_configured_reference_stays(host, capsys):
    """It has coefficient 1 even if it is not the slowest type."""
    (host / "fixed.conf").write_text("[topology]\nreference = fast\n")
    status, out, _ = amp_nova(
        host, capsys, "--output", str(host / "calibration.json"), conf="fixed.conf"
    )

    assert status == 0
    assert [t.coefficient.value for t in written(host).core_types] == pytest.approx([0.5, 1])
    assert "'slow' is slower than 'fast'" in out


def test_a_reference_elsewhere_needs_its_file(host, capsys):
    """If another host has the reference core, the message says which option to pass."""
    (host / "elsewhere.conf").write_text("[topology]\nreference = old\n")

    said = refused(host, capsys, conf="elsewhere.conf")
    assert "'old' is not a core type of this host" in said
    assert "--reference FILE" in said


def test_one_core_type_is_measured(host, capsys, monkeypatch):
    """A machine with one core type has coefficient 1."""
    monkeypatch.setattr(command, "load_topology", lambda conf: topology({"core": (0, 1)}))
    status, out, _ = amp_nova(host, capsys)

    assert status == 0
    assert cells(out)[1][:3] == ["core", "0-1", "1.0"]


def test_smt_siblings_are_measured_idle_and_busy(host, capsys, monkeypatch):
    """Cores with two hardware threads get a factor for a busy sibling, and its range."""
    smt = topology({"core": (0, 1)})
    smt = Topology(smt.core_types, tuple(PCpu(i, "core", (0, 1)) for i in (0, 1)), "core", "test")
    monkeypatch.setattr(command, "load_topology", lambda conf: smt)
    status, out, _ = amp_nova(host, capsys)

    assert status == 0
    assert cells(out)[1][-1] == "1.000 (1.00..1.00)"
    assert "SMT busy: speed beside busy siblings" in out
    assert "--taskset 0 --timeout 3s" in (host / "bin/calls").read_text()


def calibrated_elsewhere(host, capsys, monkeypatch, version="0.15.06"):
    """The file of a host whose one core type is half as fast as this host's slow one."""
    path = str(host / "elsewhere.json")
    fake_stress_ng(host / "bin", speeds={0: 0.5}, version=version)
    monkeypatch.setattr(command, "load_topology", lambda conf: topology({"old": (0,)}))
    assert amp_nova(host, capsys, "--output", path)[0] == 0
    (host / "bin/calls").unlink()
    fake_stress_ng(host / "bin")
    monkeypatch.setattr(command, "load_topology", lambda conf: topology())
    return path


def test_coefficients_relative_to_another_host(host, capsys, monkeypatch):
    """With --reference, 1 is the reference core of the other host."""
    path = calibrated_elsewhere(host, capsys, monkeypatch)
    status, out, _ = amp_nova(host, capsys, "--reference", path)

    assert status == 0
    assert "reference core: 'old' of host" in out
    assert [t.coefficient.value for t in written(host).core_types] == pytest.approx([2, 4])


def test_a_chain_of_references_is_refused(host, capsys, monkeypatch):
    """The file must be from the host that has the reference core."""
    path = calibrated_elsewhere(host, capsys, monkeypatch)
    amp_nova(host, capsys, "--reference", path)
    (host / "bin/calls").unlink()

    said = refused(host, capsys, "--reference", str(host / "calibration.json"))
    assert "is itself relative to 'old' of host" in said


def test_another_stress_ng_version_cannot_be_compared(host, capsys, monkeypatch):
    """Bogo operations of two versions are different units; the message names both versions."""
    path = calibrated_elsewhere(host, capsys, monkeypatch, version="0.17.01")

    said = refused(host, capsys, "--reference", path)
    assert "0.17.01" in said
    assert "0.15.06" in said


def test_a_kernel_that_the_reference_lacks_is_refused(host, capsys, monkeypatch):
    """The message names the kernels that can be compared."""
    path = calibrated_elsewhere(host, capsys, monkeypatch)

    said = refused(host, capsys, "--reference", path, "--kernels", "integer,float")
    assert "no kernel 'float'" in said
    assert "integer,memory" in said


def test_the_wrong_reference_file_is_refused(host, capsys, monkeypatch):
    """Its reference core is not the configured one."""
    path = calibrated_elsewhere(host, capsys, monkeypatch)
    (host / "named.conf").write_text("[topology]\nreference = ancient\n")

    assert "'ancient'" in refused(host, capsys, "--reference", path, conf="named.conf")


def test_a_missing_reference_file_is_one_sentence(host, capsys):
    """The message names the file and the reason."""
    said = refused(host, capsys, "--reference", str(host / "no.json"))
    assert "no.json cannot be read: No such file" in said


def test_equal_names_of_two_hosts_are_kept_apart(host, capsys, monkeypatch):
    """If a type of this host has the name of the reference core, that gets its host's name."""
    path = calibrated_elsewhere(host, capsys, monkeypatch)
    monkeypatch.setattr(command, "load_topology", lambda conf: topology({"old": (0,)}))
    amp_nova(host, capsys, "--reference", path)

    found = written(host)
    assert found.reference == f"old@{found.reference_host}"
    assert found.core_types[0].coefficient.value == pytest.approx(4)


def test_a_recording_cannot_be_measured(host, capsys):
    """The files of another machine cannot be measured."""
    (host / "recorded.conf").write_text("[topology]\nroot = /recording\n")

    assert "'/recording', a recording" in refused(host, capsys, conf="recorded.conf")


def test_a_missing_configuration_is_one_sentence(host, capsys):
    """The message names it."""
    assert "no.conf" in refused(host, capsys, conf="no.conf")


def test_progress_is_shown_on_a_terminal(host, capsys, monkeypatch):
    """Elsewhere it would clutter logs."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    _, _, err = amp_nova(host, capsys)

    assert "round 1 of 3: integer on 'slow'" in err
    assert err.endswith("\r\033[K")
