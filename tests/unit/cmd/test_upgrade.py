# SPDX-License-Identifier: Apache-2.0
"""``amp-nova-status upgrade check`` as an operator sees it."""

import importlib.metadata
import json
import sys

import pytest

from amp_nova.agent.publish.host_warnings import NO_REPORTS
from amp_nova.cmd import upgrade
from amp_nova.cmd.upgrade import main
from amp_nova.model.topology import CoreType, PCpu, Topology
from tests.support import machines, trees
from tests.support.reports import topology


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """Runs the checks with a configuration; exit status, and result and details by check."""

    machine = trees.write(tmp_path / "machine", machines.intel_hybrid(pmus=True))

    def check_(text, found=None):
        path = tmp_path / "amp-nova.conf"
        here = f"libvirt_uri = test:///default\nstate_path = {tmp_path}/state\n"
        here = f"[agent]\n{here}[exporter]\nport = 0\n[topology]\nroot = {machine}\n"
        path.touch(0o640)
        path.write_text(f"{here}calibration_file = {tmp_path}/calibration.json\n{text}\n")
        monkeypatch.setattr(upgrade, "load_topology", lambda _conf: found or topology())
        status = main(["--config-file", str(path), "upgrade", "check", "--json"])
        checks = json.loads(capsys.readouterr().out)["checks"]
        return status, {c["check"]: (c["result"], c["details"]) for c in checks}

    return check_


REPORTS = "[reports]\ntransport_url = rabbit://host/"
ALIKE = Topology((CoreType("cpu", 1.0),), (PCpu(0, "cpu"),), "cpu", "one type")


def test_a_host_that_is_ready(check):
    """Exit status 0, no check has a complaint, and nothing is made."""
    status, found = check(f"{REPORTS}\n[agent]\ncycle_s = 2", ALIKE)

    assert status == 0
    assert {result for result, _ in found.values()} == {0}


def test_before_the_first_calibration(check):
    """A warning with the next step; none where all cores are of one type."""
    status, found = check("")
    assert status == 1
    assert found["Core types and calibration"][0] == 1
    assert "run 'amp-nova calibrate'" in found["Core types and calibration"][1]
    assert check(REPORTS, ALIKE)[0] == 0


def test_a_pcpu_that_nova_may_use_and_the_host_does_not_have(check):
    """A typing error in the copy of Nova's option: nothing could be booked there."""
    status, found = check(f"{REPORTS}\n[nova]\ncpu_shared_set = 0,5000-5001", ALIKE)

    assert status == 1
    said = "[nova] cpu_shared_set: there is no pCPU 5000-5001 here"
    assert found["Core types and calibration"] == (1, said)


def test_a_host_of_which_no_scheduler_hears(check):
    """No booking would ever be placed on it, and only the schedulers' log would say why."""
    status, found = check("", ALIKE)

    assert status == 1
    assert found["Reports to schedulers"] == (1, NO_REPORTS)


def test_options_of_earlier_versions_are_named(check, tmp_path):
    """With the option that was probably meant; options of other libraries are not ours to judge."""
    text = (
        "[DEFAULT]\ndebug = true\n[agent]\nexact_limits_max = 4\ncycle_sec = 2\n"
        "[placement]\nauth_url = http://localhost\n[exporters]\nport = 1\n"
    )

    status, found = check(text)

    result, details = found["Configuration names"]
    path = f"{tmp_path}/amp-nova.conf"
    assert (status, result) == (1, 1)
    assert details.split("; ") == [
        f"{path} sets [agent] cycle_sec, which does not exist: did you mean 'cycle_s'?",
        f"{path} sets [agent] exact_limits_max, which does not exist: delete it",
        f"{path} has a section [exporters]: did you mean 'exporter'?",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[agent]\ncycle_s = soon", "[agent] cycle_s = soon is not allowed"),
        ("[agent]\npolicy = nosuch", "no policy 'nosuch' is installed"),
        ("[agent]\nbooking = web* amp:pref=1", "[agent] booking = web* amp:pref=1: "),
        ("[exporter]\ncert_file = /none\nkey_file = /none", "[exporter] "),
        ("[exporter]\nkey_file = /none", "[exporter] "),
        ("[nova]\ncpu_shared_set = 0-", "[nova] cpu_shared_set"),
        ("[nova]\ncpu_shared_set = ^0", "[nova] cpu_shared_set = ^0 is not valid: it names no"),
        ("[reports]\ntransport_url = foo://", "[reports] transport_url is not valid: "),
        ("[reports]\ntransport_url = rabbit://a:b@c:d/", "[reports] transport_url is not valid: "),
        ("[placement]\nenabled = true", "[placement] "),
        ("[agent]\nstate_path = {folder}/amp-nova.conf", "[agent] state_path "),
        ("[agent]\nio_work = slow\nwriter = libvirt", "[agent] io_work = slow: "),
        (
            "[DEFAULT]\nlog_file = /none/log",
            "the log cannot be written: there is no directory /none",
        ),
        ("[DEFAULT]\nlog_dir = /none", "the log cannot be written: there is no directory /none"),
        ("[DEFAULT]\nlog_dir = /\nlog_file = none/x", "the log cannot be written: there is no"),
        ("[DEFAULT]\nlog_file = {folder}", "[DEFAULT] log_file: {folder} is a directory"),
        ("[DEFAULT]\nlog_config_append = /none", "[DEFAULT] log_config_append: there is no file"),
        ("[DEFAULT]\nsyslog_log_facility = x\nuse_syslog = true", "logging cannot be set up from"),
        ("[DEFAULT]\ndefault_log_levels = amqp", "logging cannot be set up from [DEFAULT]: "),
        ("[placement]\nenabled = true\nauth_type = none\nvalid_interfaces = x", "[placement] is "),
    ],
)
def test_what_keeps_the_agent_from_starting_stops_the_upgrade(check, tmp_path, text, said):
    """Exit status 2, and the sentence that the agent would give."""
    status, found = check(text.format(folder=tmp_path))

    assert status == 2
    assert found["Configuration values"][1].startswith(said.format(folder=tmp_path))


def test_a_library_that_is_not_installed_stops_the_upgrade(check, monkeypatch):
    """The agent would not start; only a host without libvirt's binding runs none."""
    monkeypatch.delitem(sys.modules, "amp_nova.agent.publish.host_reports", raising=False)
    monkeypatch.delattr("amp_nova.agent.publish.host_reports", raising=False)
    monkeypatch.setitem(sys.modules, "oslo_messaging", None)

    status, found = check("[reports]\ntransport_url = rabbit://host/")

    assert status == 2
    assert found["Configuration values"][1].endswith(": install amp-nova[agent]")


def test_a_libvirt_that_does_not_answer_is_a_warning(check):
    """The agent would wait for it."""
    status, found = check("[agent]\nlibvirt_uri = test:///none")

    assert status == 1
    assert found["A cycle of the agent"][1].startswith("the agent could not work now: ")


@pytest.mark.parametrize(
    ("version", "result"),
    [("28.3.1", 2), ("29.0.0", 1), ("31.3.1", 1), ("32.0.0", 0), ("34.0.1", 0), ("35.0.0", 1)],
)
def test_nova_beside_it(check, monkeypatch, version, result):
    """Too old for the filter stops; too old for the agent, or too new to be tested, warns."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: version)

    assert check("")[1]["Nova"][0] == result


@pytest.mark.parametrize("file", [None, "not-there", "folder", "latin-1"])
def test_bad_input_is_one_sentence(file, tmp_path, capsys):
    """Exit status 2."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin-1").write_bytes("[agent]  # schöner".encode("latin-1"))
    words = ["upgrade", "chekc"]
    if file is not None:
        words = ["--config-file", str(tmp_path / file), "upgrade", "check"]

    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_version(capsys):
    """As for the other programs."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("amp-nova-status ")
