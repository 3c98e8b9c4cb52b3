# SPDX-License-Identifier: Apache-2.0
"""``amp-nova-agent`` as a user sees it, on a fake host and on libvirt's own test driver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.cmd.agent import main
from amp_nova.guard import lease
from amp_nova.guard.locks import locked
from tests.support import machines, trees

NAME = "instance-00000001"
HALF = {"amp:pref_core": "0.5"}


@pytest.fixture
def config(tmp_path):
    """Writes a configuration for the test."""

    def config_(**agent):
        path = tmp_path / "amp-nova.conf"
        agent = {"state_path": tmp_path / "state", **agent}
        lines = [f"{key} = {value}" for key, value in agent.items()]
        path.write_text("\n".join(["[agent]", *lines]) + "\n")
        return path

    return config_


@pytest.fixture
def run(config, capsys):
    """Runs the agent; exit status, output and error."""

    def run_(*argv, **agent):
        status = main(["--config-file", str(config(**agent)), *argv])
        return status, *capsys.readouterr()

    return run_


def real(*argv, forbid=""):
    """The agent in its own process; the module ``forbid`` cannot be imported."""
    code = "import sys; from amp_nova.cmd.agent import main; sys.exit(main(sys.argv[1:]))"
    if forbid:
        code = f"import sys; sys.modules[{forbid!r}] = None; " + code
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, argv)], capture_output=True, text=True, timeout=60
    )
    return result.returncode, result.stdout, result.stderr


def test_once_changes_and_reports(node, run):
    """One line for each vCPU with its allocation and the reason."""
    node.start(specs=HALF, cpuset="0-1")

    status, out, err = run("--once")

    quota, period = node.host.limit().split()
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        *(
            f"{NAME} vCPU {i}: quota {quota}/{period} us, pCPUs 0-1 (0.5 refcores / 1 on slow)"
            for i in range(2)
        ),
        f"{NAME}: CPU weight 1000",
    ]
    assert run("--once") == (0, "nothing to change\n", "")


def test_once_has_a_lease_like_the_service(node, run, tmp_path):
    """So a guard keeps the host in its safe state once that has expired."""
    node.start(specs=HALF)

    assert run("--once")[0] == 0

    assert 9.0 < lease.remaining_s(tmp_path / "state") <= 10.0


def test_once_writes_nothing_while_another_process_changes_limits(node, run, tmp_path):
    """The answer is no, and names the process."""
    node.start(specs=HALF)
    with locked(tmp_path / "state", "cycle.lock"):
        status, out, _ = run("--once")

    assert status == 1
    assert node.kernel.writes == 0
    assert f"process {os.getpid()}" in out


def test_dry_run_changes_nothing_and_needs_no_lease(node, run, tmp_path):
    """It prints the lines of --once, works beside a service, and leaves no trace."""
    node.start(specs=HALF)
    with locked(tmp_path / "state", "agent.lock"):
        dry = run("--dry-run")

    assert node.kernel.writes == 0
    assert not (tmp_path / "state" / "lease").exists()
    assert run("--once") == dry


def test_dry_run_shows_what_the_policy_would_change(node, run, tmp_path):
    """Where the policy would place best-effort vCPUs; none is moved, no folder is made."""
    node.start()
    before = dict(node.kernel.affinity)

    status, out, _ = run("--dry-run", policy="acfs")

    assert status == 0
    assert not (tmp_path / "state").exists()
    assert [line.partition(": ")[2].split()[0] for line in out.splitlines()] == [
        "pCPUs", "pCPUs", "CPU"
    ]  # fmt: skip
    assert out.count("(policy acfs)") == 2
    assert node.kernel.affinity == before
    run("--once")
    assert node.kernel.affinity == before  # no policy is the default
    run("--once", policy="acfs")
    assert node.kernel.affinity != before


@pytest.mark.parametrize(
    ("file", "said"),
    [("cpu.max", "vCPU 0 cannot be changed"), ("cpu.weight", "its CPU weight cannot be changed")],
)
def test_a_failed_change_is_the_answer_no(node, run, file, said):
    """Exit status 1, and the line has the kernel's error."""
    node.start(specs=HALF)
    node.kernel.refuse = {file: 30}

    status, out, _ = run("--once")

    assert status == 1
    assert out.count(f"FAILED: {said}: Read-only file system") == 1


@pytest.mark.fault(
    "garbage in a domain's metadata", "that domain alone is without a booking, with the reason"
)
def test_problems_are_reported(node, run):
    """An invalid booking, and a domain whose threads cannot be read; the others are limited."""
    node.start("good", pid=4100, specs=HALF)
    node.start(specs={"amp:pref_core": "a lot"})
    node.libvirt.define("instance-00000002")

    status, out, _ = run("--once")

    assert status == 0
    assert node.host.limit("good").split()[0] != "max"
    assert node.host.limit(NAME).split()[0] == "max"
    assert f"{NAME}: amp:pref_core='a lot' is not allowed" in out
    assert "instance-00000002: its threads cannot be read: " in out


@pytest.mark.parametrize("arguments", [[], ["--once"]])
def test_second_agent_cannot_run_now(node, run, tmp_path, arguments):
    """Exit status 1 and one sentence: systemd starts it again, and the other one may have ended."""
    node.start(specs=HALF)
    with locked(tmp_path / "state", "agent.lock"):
        status, _, err = run(*arguments)

    assert status == 1
    assert node.kernel.writes == 0
    process = Path("/proc/self/comm").read_text().strip()
    assert err == (
        "amp-nova-agent: another amp-nova-agent runs here: "
        f"process {os.getpid()} ({process}) holds {tmp_path}/state/agent.lock\n"
    )


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({"policy": "amp-most"}, "no policy 'amp-most' is installed"),
        ({"state_path": "/proc/self/x"}, "[agent] state_path /proc/self/x cannot be written"),
    ],
)
def test_bad_configuration_is_bad_input(node, run, agent, said):
    """Exit status 2 and a message with section, option and the error; nothing is written."""
    node.start(specs=HALF)

    status, out, err = run("--once", **agent)

    assert (status, out) == (2, "")
    assert err.startswith(f"amp-nova-agent: {said}")
    assert err.count("\n") == 1
    assert node.kernel.writes == 0


@pytest.fixture
def machine(tmp_path):
    """The files of a machine with two core types."""
    return trees.write(tmp_path / "machine", machines.intel_hybrid(pmus=True))


def own(config, machine, more="", **agent):
    """A configuration with a machine's files and libvirt's test driver."""
    path = config(libvirt_uri="test:///default", **agent)
    with path.open("a") as file:
        file.write(f"[topology]\nroot = {machine}\ncalibration_file =\n{more}\n")
    path.chmod(0o640)
    return path


def test_real_libvirt_binding_is_driven_once(config, machine, tmp_path):
    """The domain of libvirt's test driver has no QEMU process, which the agent reports.

    The firmware declares the machine's coefficient, and nobody measured what its siblings cost:
    those are warnings on standard error. The log goes to the file that is named.
    """
    log = tmp_path / "agent.log"
    path = own(config, machine, f"[DEFAULT]\nlog_file = {log}")

    status, out, err = real("--config-file", path, "--once", "--debug")

    assert status == 0
    declared, unmeasured = err.splitlines()
    assert declared.startswith("amp-nova-agent: warning: the coefficient of p-core is declared by")
    assert "what a busy sibling costs on p-core" in unmeasured
    assert out.startswith("nothing to change\ntest: its threads cannot be read: ")
    assert " INFO " in log.read_text()


def test_missing_libvirt_binding_is_one_sentence(config, machine):
    """The message says what to install."""
    path = own(config, machine)

    status, out, err = real("--config-file", path, "--once", forbid="libvirt")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("amp-nova-agent: libvirt's Python binding cannot be loaded (")
    assert err.endswith("): install amp-nova[agent]\n")


def test_the_agent_is_a_module():
    """``python -m amp_nova.cmd.agent`` runs it, as the build of the Debian package does."""
    command = [sys.executable, "-m", "amp_nova.cmd.agent", "--nonesuch"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


NOBODY = "qemu+unix:///system?socket=/no/such"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("[reports]\ntransport_url = x", "[reports] transport_url is not valid: "),
        (f"[agent]\nlibvirt_uri = {NOBODY}", f"libvirt at {NOBODY}: "),
        (
            "[DEFAULT]\ndebug = perhaps",
            "the configuration cannot be read: argument --debug: Invalid Boolean",
        ),
        ("[DEFAULT]\nlog_file = /not/there/agent.log", "logging cannot be set up from [DEFAULT]"),
    ],
    ids=["bus", "libvirt", "debug", "log file"],
)
def test_what_cannot_be_used_is_one_sentence(config, machine, lines, said):
    """Exit status 2 at once: --once does not retry, and the libraries print nothing else.

    In a process of its own: a guard does not end before the agent's process.
    """
    status, out, err = real("--config-file", own(config, machine, lines), "--once")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"amp-nova-agent: {said}")
