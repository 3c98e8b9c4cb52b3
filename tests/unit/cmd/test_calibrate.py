"""``amp-nova calibrate`` as a user sees it, with FAKE measurements."""

import contextlib
import dataclasses
import json
import platform
from pathlib import Path

import pytest

from amp_nova.cmd import calibrate as command
from amp_nova.cmd import cli
from amp_nova.exceptions import CountersUnavailable
from amp_nova.host.calibration import file, idleness, kernels, provenance, rounds
from amp_nova.host.counters import perf
from amp_nova.model.topology import PCpu, Topology
from tests.calibrations import FakeCores, build, machine_files, topology
from tests.tables import cells

QUICK = ("--repeat", "3", "--kernels", "integer,memory")


@pytest.fixture
def cores(monkeypatch):
    """FAKE cores: pCPU 0 is twice as fast as pCPU 1."""
    cores = FakeCores()
    monkeypatch.setattr(kernels, "measure", cores.measure)
    return cores


@pytest.fixture
def host(tmp_path, monkeypatch, cores):
    """An idle host with a fast and a slow core type, FAKE measurements and no counters."""

    def missing(*_):
        raise CountersUnavailable("this machine has no hardware counter for instructions")

    (tmp_path / "amp.conf").write_text(
        f"[topology]\ncalibration_file = {tmp_path}/calibration.json\n"
    )
    monkeypatch.setattr(command, "load_topology", lambda conf: topology())
    monkeypatch.setattr(idleness, "loads", lambda: {0: 0.0, 1: 0.0})
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
    """The message of a refusal, one sentence; the file is as it was."""
    before = sorted((path, path.read_bytes()) for path in host.glob("*.json"))
    status, out, err = amp_nova(host, capsys, *arguments, conf=conf)
    assert (status, out) == (2, "")
    assert err.startswith("amp-nova")
    assert err.count("\n") == 1
    assert sorted((path, path.read_bytes()) for path in host.glob("*.json")) == before
    return err


def written(host, name="calibration.json"):
    (found,) = file.read(host / name)
    return found


def test_it_measures_prints_and_writes(host, capsys):
    """The table has a row per type, slowest first, and the file holds the same."""
    status, out, err = amp_nova(host, capsys)

    assert (status, err) == (0, "")
    assert cells(out)[1:] == [
        ["slow", "1", "1.0", "1.000..1.000", "1.0", "1.0", "None", "None"],
        ["fast", "0", "2.0", "1.980..2.020", "2.0", "2.0", "None", "None"],
    ]
    assert "no nominal Ips: this machine has no hardware counter" in out
    assert f"written to {host}/calibration.json" in out
    assert [t.name for t in written(host).core_types] == ["slow", "fast"]
    assert written(host).provenance.python_version == platform.python_version()


def test_json_is_the_entry_of_the_file(host, capsys):
    """Scripts read the same values as in the file."""
    status, out, _ = amp_nova(host, capsys, "--format", "json")
    found = json.loads(out)

    assert status == 0
    assert found["reference"] == "slow"
    assert found["core_types"][1]["coefficient"]["value"] == pytest.approx(2)
    assert found["core_types"][1]["nominal_ips"] is None


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


def test_the_idlest_pcpu_is_measured(host, capsys, monkeypatch, cores):
    """Other work does not matter as long as it leaves some time."""
    monkeypatch.setattr(command, "load_topology", lambda conf: topology({"core": (0, 1)}))
    monkeypatch.setattr(idleness, "loads", lambda: {0: 0.3, 1: 0.8})

    assert amp_nova(host, capsys)[0] == 0
    assert {pcpus for _, pcpus in cores.measured} == {(0,)}


def test_a_noisy_result_is_not_written(host, capsys, cores):
    """The sentence has the spread and what can be done; the old file stays."""
    (host / "calibration.json").write_text("old")
    cores.alternating = 1.5

    assert refused(host, capsys) == (
        "amp-nova: the coefficient of 'fast' is 2, within 1.98 to 3: a spread of 51%, and at most"
        " 10% is allowed; nothing was written: raise --repeat to measure longer, pass --force to"
        " write it all the same, or set the coefficient in [topology] core_type\n"
    )


def test_a_noisy_result_is_written_by_force(host, capsys, cores):
    """--force writes a noisy result, marked as such."""
    cores.alternating = 1.5
    status, out, _ = amp_nova(host, capsys, "--force")

    assert status == 0
    assert "warning: forced although the coefficient of 'fast'" in out
    assert "forced although the coefficient of 'fast'" in written(host).warnings[0]
    assert written(host).provenance.forced


def test_pcpus_that_are_never_free_are_named(host, capsys, cores):
    """Nothing is guessed if every slice was preempted."""
    cores.preempted = True

    assert "too few slices of integer ran on 'slow' or 'slow'" in refused(host, capsys, "--force")


@pytest.fixture
def slept(monkeypatch):
    """What the command slept in service, and a FAKE cgroup of the idle class."""
    naps = []

    @contextlib.contextmanager
    def idle():
        naps.append(0.0)
        yield

    monkeypatch.setattr(kernels, "in_idle_group", idle)
    monkeypatch.setattr(rounds.time, "sleep", naps.append)
    return naps


def test_in_service_it_takes_the_share_that_it_may(host, capsys, cores, slept):
    """It goes to an idle cgroup first, and rests after each slice: 10 % of one pCPU here."""
    assert amp_nova(host, capsys, "--in-service", "10")[0] == 0

    used_s = 0.1 * len(cores.measured)
    assert slept[0] == 0
    assert used_s / (used_s + sum(slept)) == pytest.approx(0.1)
    assert written(host).provenance.in_service


def test_in_service_it_measures_until_the_result_is_good(host, capsys, cores, slept):
    """Two good rounds among three are not enough to be sure; more follow."""
    cores.alternating = 0.8
    status, out, _ = amp_nova(host, capsys, "--in-service", "--force")

    assert status == 0
    assert written(host).provenance.repeat == 30
    assert "30 rounds" in out


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


def test_the_slowest_measured_type_is_the_reference(host, capsys, cores):
    """Measuring corrects a wrong order, and tells the operator to configure the reference."""
    cores.speeds = {0: 1000.0, 1: 4000.0}
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


def test_smt_siblings_are_measured_idle_and_busy(host, capsys, monkeypatch, cores):
    """Cores with two hardware threads get a factor for a busy sibling, and its range."""
    smt = topology({"core": (0, 1)})
    smt = Topology(smt.core_types, tuple(PCpu(i, "core", (0, 1)) for i in (0, 1)), "core", "test")
    monkeypatch.setattr(command, "load_topology", lambda conf: smt)
    status, out, _ = amp_nova(host, capsys)

    assert status == 0
    assert cells(out)[1][-1] == "1.000 (1.00..1.00)"
    assert "SMT busy: speed beside busy siblings" in out
    assert {run.smt_busy for run, pcpus in cores.measured if pcpus == (1, 0)} == {False, True}


@pytest.fixture
def elsewhere(host, capsys, monkeypatch, cores):
    """The file of a host whose one core type is half as fast as this host's slow one."""
    path, speeds = str(host / "elsewhere.json"), cores.speeds
    cores.speeds = {0: 500.0}
    monkeypatch.setattr(command, "load_topology", lambda conf: topology({"old": (0,)}))
    assert amp_nova(host, capsys, "--output", path)[0] == 0
    cores.speeds = speeds
    monkeypatch.setattr(command, "load_topology", lambda conf: topology())
    return path


def test_coefficients_relative_to_another_host(host, capsys, elsewhere):
    """With --reference, 1 is the reference core of the other host."""
    status, out, _ = amp_nova(host, capsys, "--reference", elsewhere)

    assert status == 0
    assert "reference core: 'old' of host" in out
    assert [t.coefficient.value for t in written(host).core_types] == pytest.approx([2, 4])


def test_a_chain_of_references_is_refused(host, capsys, elsewhere):
    """The file must be from the host that has the reference core."""
    amp_nova(host, capsys, "--reference", elsewhere)

    said = refused(host, capsys, "--reference", str(host / "calibration.json"))
    assert "is itself relative to 'old' of host" in said


def test_operations_of_another_python_cannot_be_compared(host, capsys, elsewhere):
    """They are different work; the message names both versions."""
    path, mine = Path(elsewhere), platform.python_version()
    path.write_text(path.read_text().replace(f'"{mine}"', '"3.9.2"'))

    sentence = refused(host, capsys, "--reference", elsewhere)
    assert f"was measured with Python 3.9.2, but this host has Python {mine}" in sentence


def test_a_kernel_that_the_reference_lacks_is_refused(host, capsys, elsewhere):
    """The message names the kernels that can be compared."""

    said = refused(host, capsys, "--reference", elsewhere, "--kernels", "integer,float")
    assert "was measured with other kernels; pass --kernels integer,memory" in said


def test_the_wrong_reference_file_is_refused(host, capsys, elsewhere):
    """Its reference core is not the configured one."""
    (host / "named.conf").write_text("[topology]\nreference = ancient\n")

    assert "'ancient'" in refused(host, capsys, "--reference", elsewhere, conf="named.conf")


def test_a_missing_reference_file_is_one_sentence(host, capsys):
    """The message names the file and the reason."""
    said = refused(host, capsys, "--reference", str(host / "no.json"))
    assert "no.json cannot be read: No such file" in said


def test_equal_names_of_two_hosts_are_kept_apart(host, capsys, monkeypatch, elsewhere):
    """If a type of this host has the name of the reference core, that gets its host's name."""
    monkeypatch.setattr(command, "load_topology", lambda conf: topology({"old": (0,)}))
    amp_nova(host, capsys, "--reference", elsewhere)

    found = written(host)
    assert found.reference == f"old@{found.reference_host}"
    assert found.core_types[0].coefficient.value == pytest.approx(4)


def test_two_reference_cores_in_a_file_are_not_chosen_from(host, capsys):
    """The configuration has to say which one the cloud has."""
    models = (build(machine_files(host / m, model=m)) for m in ("Model B", "Model C"))
    two = [
        dataclasses.replace(c, reference=r) for c, r in zip(models, ("slow", "fast"), strict=True)
    ]
    file.write(host / "two.json", two)

    said = refused(host, capsys, "--reference", str(host / "two.json"))
    assert "has several reference cores, 'slow' of host" in said
    assert said.endswith("name one in [topology] reference\n")


def test_merge_keeps_the_calibrations_of_other_cpu_models(host, capsys):
    """One file serves hosts of several models; that of this model is replaced."""
    other = build(machine_files(host / "other", model="Model B"))
    mine = build("/")
    file.write(host / "calibration.json", [other, mine])

    assert amp_nova(host, capsys, "--merge")[0] == 0
    kept, new = file.read(host / "calibration.json")
    assert kept == other
    assert new.provenance.date > mine.provenance.date
    assert provenance.own([kept, new]) is new


def test_without_merge_the_file_is_of_this_host_alone(host, capsys):
    """What it held before is replaced."""
    file.write(host / "calibration.json", [build(machine_files(host / "b", model="Model B"))])

    assert amp_nova(host, capsys)[0] == 0
    assert written(host).provenance.cpu_model != "Model B"


def test_a_damaged_file_cannot_be_merged(host, capsys):
    """It is not overwritten."""
    (host / "calibration.json").write_text("garbage")

    assert "calibration.json is damaged" in refused(host, capsys, "--merge")


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

    assert "round 1 of 3, " in err
    assert err.endswith("\r\033[K")
