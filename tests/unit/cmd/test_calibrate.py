# SPDX-License-Identifier: Apache-2.0
"""``amp-nova calibrate`` as a user sees it, with FAKE measurements."""

import contextlib
import dataclasses
import json
import platform

import pytest

from amp_nova.cmd import calibrate as command
from amp_nova.exceptions import CountersUnavailable
from amp_nova.hardware.designs import MachineFacts
from amp_nova.host.calibration import file, idleness, kernels, provenance
from amp_nova.host.counters import perf
from amp_nova.model.topology import PCpu, Topology
from tests.support.calibrations import FakeCores, build, machine_files, topology
from tests.support.tables import cells

QUICK = ("--repeat", "3")


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

    monkeypatch.setattr(command, "load_topology", lambda conf: topology())
    monkeypatch.setattr(idleness, "loads", lambda: {0: 0.0, 1: 0.0})
    monkeypatch.setattr(command, "read_facts", lambda _root: MachineFacts(()))
    monkeypatch.setattr(perf, "on_pcpu", missing)
    return tmp_path


@pytest.fixture
def run(host, amp):
    """Runs the command, with these lines in [topology]; exit status, output and error."""

    def run_(*arguments, lines=""):
        config = host / "amp.conf"
        config.write_text(f"[topology]\ncalibration_file = {host}/calibration.json\n{lines}\n")
        return amp("calibrate", "--config-file", config, *QUICK, *arguments)

    return run_


@pytest.fixture
def calibrate(run):
    """Runs the command, which succeeds; its output."""

    def calibrate_(*arguments, **more):
        status, out, err = run(*arguments, **more)
        assert (status, err) == (0, "")
        return out

    return calibrate_


@pytest.fixture
def refused(host, run):
    """Runs the command, which refuses in one sentence and leaves the files as they were."""

    def refused_(*arguments, **more):
        before = sorted((path, path.read_bytes()) for path in host.glob("*.json"))
        status, out, err = run(*arguments, **more)
        assert (status, out) == (2, "")
        assert err.startswith("amp-nova")
        assert err.count("\n") == 1
        assert sorted((path, path.read_bytes()) for path in host.glob("*.json")) == before
        return err

    return refused_


def written(host, name="calibration.json"):
    (found,) = file.read(host / name)
    return found


def test_it_measures_prints_and_writes(host, calibrate):
    """The table has a row per type, slowest first, and the file holds the same."""
    out = calibrate()

    assert cells(out)[1:] == [
        ["slow", "1", "1.0", "1.000..1.000", *["1.0"] * 4, "-", "-"],
        ["fast", "0", "2.0", "1.980..2.020", *["2.0"] * 4, "-", "-"],
    ]
    assert "no nominal Ips: this machine has no hardware counter" in out
    assert f"written to {host}/calibration.json" in out
    assert [t.name for t in written(host).core_types] == ["slow", "fast"]
    assert written(host).provenance.python_version == platform.python_version()


def test_json_is_the_entry_of_the_file(calibrate):
    """Scripts read the same values as in the file."""
    found = json.loads(calibrate("--format", "json"))

    assert found["reference"] == "slow"
    assert found["core_types"][1]["coefficient"]["value"] == pytest.approx(2)
    assert found["core_types"][1]["nominal_ips"] is None


def test_another_file(host, calibrate):
    """--output measures without a change to the file in use."""
    calibrate("--output", host / "other.json")
    assert not (host / "calibration.json").exists()

    assert written(host, "other.json").reference == "slow"
    assert not (host / "calibration.json").exists()


def test_the_idlest_pcpu_is_measured(calibrate, monkeypatch, cores):
    """Other work does not matter as long as it leaves some time; one type has coefficient 1."""
    monkeypatch.setattr(command, "load_topology", lambda conf: topology({"core": (0, 1)}))
    monkeypatch.setattr(idleness, "loads", lambda: {0: 0.3, 1: 0.8})

    assert cells(calibrate())[1][:3] == ["core", "0-1", "1.0"]
    assert {pcpus for _, pcpus in cores.measured} == {(0,)}


def test_a_noisy_result_is_not_written(host, refused, cores):
    """The sentence has the spread and what can be done; the old file stays."""
    (host / "calibration.json").write_text("old")
    cores.alternating = 1.5

    assert refused() == (
        "amp-nova: the coefficient of 'fast' is 2, within 1.98 to 3: a spread of 51%, and at most"
        " 10% is allowed; nothing was written: raise --repeat to measure longer, pass --force to"
        " write it all the same, or set the coefficient in [topology] core_type\n"
    )


def test_a_noisy_result_is_written_by_force(host, calibrate, cores):
    """--force writes a noisy result, marked as such."""
    cores.alternating = 1.5

    assert "warning: forced although the coefficient of 'fast'" in calibrate("--force")
    assert "forced although the coefficient of 'fast'" in written(host).warnings[0]
    assert written(host).provenance.forced


def test_pcpus_that_are_never_free_are_named(refused, cores):
    """Nothing is guessed if every slice was preempted."""
    cores.preempted = True

    assert "too few slices of integer, float, branch ran on 'slow' or 'slow'" in refused("--force")


@pytest.fixture
def slept(monkeypatch):
    """What the command slept in service, and a FAKE cgroup of the idle class."""
    naps = []

    @contextlib.contextmanager
    def idle():
        naps.append(0.0)
        yield

    monkeypatch.setattr(kernels, "in_idle_group", idle)
    monkeypatch.setattr(kernels.time, "sleep", naps.append)
    return naps


def test_in_service_it_takes_the_share_that_it_may(host, calibrate, cores, slept):
    """It goes to an idle cgroup first, and rests after each slice: 10 % of one pCPU here."""
    calibrate("--in-service", "10")

    used_s = 0.1 * len(cores.measured)
    assert slept[0] == 0
    assert used_s / (used_s + sum(slept)) == pytest.approx(0.1)
    assert written(host).provenance.in_service


@pytest.mark.parametrize(("arguments", "rounds"), [((), 9), (("--in-service",), 30)])
def test_it_measures_until_the_result_is_good(host, calibrate, cores, slept, arguments, rounds):
    """Two good rounds among three are not enough to be sure; more follow."""
    cores.alternating = 0.8

    assert f"{rounds} rounds" in calibrate("--force", *arguments)
    assert written(host).provenance.repeat == rounds


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--seconds", "0"), "'0' is not a whole number from 1 to 3600"),
        (("--seconds", "0.5"), "'0.5' is not a whole number"),
        (("--repeat", "-1"), "'-1' is not a whole number"),
        (("--repeat", "9" * 5000), "is not a whole number"),
        (("--output", "/dev/null/below.json"), "cannot be written"),
        (("--reference", "/no.json"), "/no.json cannot be read: No such file"),
        (("--config-file", "/no.conf"), "/no.conf"),
    ],
)
def test_bad_arguments_are_one_sentence(refused, cores, arguments, said):
    """The message names the value and what is allowed; no minutes of measuring are wasted."""
    assert said in refused(*arguments)
    assert cores.measured == []


def test_a_damaged_old_file_is_ignored(host, calibrate, monkeypatch):
    """Calibrating is the remedy for a damaged file."""
    (host / "calibration.json").write_text("garbage")
    seen = []

    def load(conf):
        seen.append(conf.topology.calibration_file)
        return topology()

    monkeypatch.setattr(command, "load_topology", load)

    calibrate()

    assert seen == [""]
    assert written(host).reference == "slow"


def test_the_slowest_measured_type_is_the_reference(host, calibrate, cores):
    """Measuring corrects a wrong order, and tells the operator to configure the reference."""
    cores.speeds = {0: 1000.0, 1: 4000.0}

    assert "set [topology] reference = fast" in calibrate()
    assert written(host).reference == "fast"


def test_a_configured_reference_stays(host, calibrate):
    """It has coefficient 1 even if it is not the slowest type."""
    assert "'slow' is slower than 'fast'" in calibrate(lines="reference = fast")
    assert [t.coefficient.value for t in written(host).core_types] == pytest.approx([0.5, 1])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("root = /recording", "'/recording', a recording"),
        (
            "reference = old",
            "'old' is not a core type of this host, which has slow, fast; pass --reference FILE",
        ),
    ],
)
def test_what_this_host_does_not_have_cannot_be_measured(refused, line, said):
    """The files of another machine, and a reference core of another host without its file."""
    assert said in refused(lines=line)


def test_smt_siblings_are_measured_idle_and_busy(calibrate, monkeypatch, cores):
    """Cores with two hardware threads get a factor for a busy sibling, and its range."""
    smt = topology({"core": (0, 1)})
    smt = Topology(smt.core_types, tuple(PCpu(i, "core", (0, 1)) for i in (0, 1)), "core", "test")
    monkeypatch.setattr(command, "load_topology", lambda conf: smt)
    out = calibrate()

    assert cells(out)[1][-1] == "1.000 (1.00..1.00)"
    assert "SMT busy: speed beside busy siblings" in out
    assert {run.smt_busy for run, pcpus in cores.measured if pcpus == (1, 0)} == {False, True}


@pytest.fixture
def elsewhere(host, calibrate, monkeypatch, cores):
    """The file of a host whose one core type is half as fast as this host's slow one."""
    path, speeds = host / "elsewhere.json", cores.speeds
    cores.speeds = {0: 500.0}
    monkeypatch.setattr(command, "load_topology", lambda conf: topology({"old": (0,)}))
    calibrate("--output", path)
    cores.speeds = speeds
    monkeypatch.setattr(command, "load_topology", lambda conf: topology())
    return path


def test_coefficients_relative_to_another_host(host, calibrate, refused, elsewhere):
    """With --reference, 1 is the reference core of the other host; a chain of them is refused."""
    assert "reference core: 'old' of host" in calibrate("--reference", elsewhere)
    assert [t.coefficient.value for t in written(host).core_types] == pytest.approx([2, 4])

    said = refused("--reference", host / "calibration.json")
    assert "is itself relative to 'old' of host" in said


def test_operations_of_another_python_cannot_be_compared(refused, elsewhere):
    """They are different work; the message names both versions."""
    mine = platform.python_version()
    elsewhere.write_text(elsewhere.read_text().replace(f'"{mine}"', '"3.9.2"'))

    sentence = refused("--reference", elsewhere)
    assert f"was measured with Python 3.9.2, but this host has Python {mine}" in sentence


def test_the_wrong_reference_file_is_refused(refused, elsewhere):
    """It lacks a kernel; or another core is configured."""
    complete = elsewhere.read_text()
    found = json.loads(complete)
    found["calibrations"][0]["kernels"].pop()
    elsewhere.write_text(json.dumps(found))
    assert "was measured with other kernels" in refused("--reference", elsewhere)
    elsewhere.write_text(complete)

    assert "'ancient'" in refused("--reference", elsewhere, lines="reference = ancient")


def test_equal_names_of_two_hosts_are_kept_apart(host, calibrate, monkeypatch, elsewhere):
    """If a type of this host has the name of the reference core, that gets its host's name."""
    monkeypatch.setattr(command, "load_topology", lambda conf: topology({"old": (0,)}))
    calibrate("--reference", elsewhere)

    found = written(host)
    assert found.reference == f"old@{found.reference_host}"
    assert found.core_types[0].coefficient.value == pytest.approx(4)


def test_two_reference_cores_in_a_file_are_not_chosen_from(host, refused):
    """The configuration has to say which one the cloud has."""
    models = (build(machine_files(host / m, model=m)) for m in ("Model B", "Model C"))
    two = [
        dataclasses.replace(c, reference=r) for c, r in zip(models, ("slow", "fast"), strict=True)
    ]
    file.write(host / "two.json", two)

    said = refused("--reference", host / "two.json")
    assert "has several reference cores, 'slow' of host" in said
    assert said.endswith("name one in [topology] reference\n")


def test_merge_keeps_the_calibrations_of_other_cpu_models(host, calibrate):
    """One file serves hosts of several models; without --merge it is of this host alone."""
    other = build(machine_files(host / "other", model="Model B"))
    mine = build("/")
    file.write(host / "calibration.json", [other, mine])

    calibrate("--merge")
    kept, new = file.read(host / "calibration.json")
    assert kept == other
    assert new.provenance.date > mine.provenance.date
    assert provenance.own([kept, new]) is new

    calibrate()
    assert written(host).provenance.cpu_model != "Model B"


def test_a_damaged_file_cannot_be_merged(host, refused):
    """It is not overwritten."""
    (host / "calibration.json").write_text("garbage")

    assert "calibration.json is damaged" in refused("--merge")
