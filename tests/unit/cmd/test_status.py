"""``amp-nova status`` and ``explain`` as a user sees them; the tests play the agent."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from amp_nova.accounting.delivery import Last
from amp_nova.agent.operator import control_socket
from amp_nova.agent.operator import status as status_
from amp_nova.cmd.instances import NONE_HERE
from tests.support import reports
from tests.support.reports import best_effort, booked, instance, ips
from tests.support.tables import cells

UUID = "uuid-of-instance-00000001"


@pytest.fixture
def config(tmp_path):
    """A configuration of the agent whose part the test plays."""
    path = tmp_path / "amp-nova.conf"
    path.write_text(f"[agent]\nstate_path = {tmp_path}\ncycle_s = 0.05\n")
    return path


@pytest.fixture
def serve(tmp_path):
    """Serves the record of one cycle, as the agent does."""
    servers = []

    def serve_(*domains, error=None):
        cycle = reports.cycle(*domains)

        def answer(question):
            if error:
                return {"error": error}
            if question["command"] == "explain":
                return {"explain": status_.explain(cycle, question["instance"])}
            return {"status": status_.status(cycle)}

        servers.append(control_socket.Control(tmp_path, answer))

    yield serve_
    for server in servers:
        server.close()


def test_status_shows_a_line_for_every_vcpu(run, serve):
    """Booked, delivered, quota and core type, with problems at the end of the line."""
    serve(
        instance(booked(), ips(1, note="unverifiable: no counter")),
        instance(best_effort(), name="instance-00000002"),
        instance(name="instance-00000003", problem="its threads cannot be read"),
    )

    status, out, err = run("status")

    assert (status, err) == (0, "")
    assert [" ".join(row).strip() for row in cells(out)] == [
        "Domain VCPU Booked Delivered Ratio Quota Core Type Note",
        "instance-00000001 0 0.5 0.4875 0.975 0.25 fast short contention 0.25 refcore s",
        "instance-00000001 1 2.5e+09 Ips - - - any unverifiable: no counter",
        "instance-00000002 0 best effort - - - any",
        "instance-00000003 - - - - - - its threads cannot be read",
    ]
    assert json.loads(run("status", "--format", "json")[1])[0]["vcpus"][0]["quota_cores"] == 0.25


def test_those_that_get_the_least_first(run, serve):
    """Programs read the columns that they name; what is unknown comes last."""
    serve(
        instance(booked(), best_effort(1)),
        instance(booked(account=reports.account(last=Last(ratio=0.5))), name="instance-00000002"),
    )

    status, out, _ = run(
        "status", *["-f", "csv", "-c", "domain", "-c", "RATIO", "--sort-column", "ratio"]
    )

    assert status == 0
    assert out.splitlines() == [
        '"Domain","Ratio"',
        '"instance-00000002",0.5',
        '"instance-00000001",0.975',
        '"instance-00000001",""',
    ]


def test_watch_draws_the_table_again_in_every_cycle(run, serve, config):
    """On a terminal: an agent that is not there yet, then its instances, until Ctrl-C."""
    status, _, err = run("status", "--watch")
    assert (status, err.count("\n")) == (2, 1)
    assert "--watch draws a table on a terminal: leave it out for other formats" in err
    words = [sys.executable, "-m", "amp_nova.cmd.cli", "status", "--watch", "--config-file", config]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        words,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"COLUMNS": "120", "TERM": "xterm"},
    ) as watch:
        os.close(theirs)
        _read_until(ours, "no agent responds")
        serve(instance(booked()))
        seen = _read_until(ours, "0.975"), _read_until(ours, "0.975")
        watch.send_signal(signal.SIGINT)
    os.close(ours)

    assert all("instance-00000001" in table for table in seen)
    assert watch.returncode == 0


def _read_until(terminal, text):
    """What a terminal shows up to this text."""
    seen = ""
    while text not in seen:
        seen += os.read(terminal, 4096).decode()
    return seen


@pytest.mark.parametrize(("form", "said"), [("table", NONE_HERE), ("json", "[]"), ("yaml", "[]")])
def test_a_host_without_instances(run, serve, form, said):
    """It is not an error; the table's place has the next step."""
    serve()

    assert run("status", "--format", form) == (0, f"{said}\n", "")


def test_agents_refusal_is_the_answer_no(run, serve):
    """Exit status 1, as if the agent has just started or does not know the instance."""
    serve(error="no instance 'x' on this host")

    assert run("explain", "x") == (1, "", "amp-nova: no instance 'x' on this host\n")


def test_explain_shows_the_instance_and_the_reasons(run, serve):
    """Its names, and one line for each reason."""
    serve(instance(booked()))

    status, out, _ = run("explain", UUID)

    assert (status, out.splitlines()[0]) == (0, f"instance-00000001 ({UUID})")
    assert cells(out)[:2] == [["Reason"], ["vCPU 0 books 0.5 reference cores."]]
    found = json.loads(run("explain", UUID, "--format", "json")[1])
    assert (found["domain"], len(found["because"])) == ("instance-00000001", len(cells(out)) - 1)


def test_a_state_path_that_is_too_long_is_bad_input(run, tmp_path):
    """The length of a socket's path is limited."""
    (tmp_path / "amp-nova.conf").write_text(f"[agent]\nstate_path = /{'x' * 200}\n")

    status, _, err = run("status")

    assert status == 2
    assert "does not answer" in err
