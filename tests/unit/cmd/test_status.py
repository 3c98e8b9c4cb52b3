# SPDX-License-Identifier: Apache-2.0
"""``amp-nova status`` and ``explain`` as a user sees them; the tests play the agent."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections import deque
from functools import partial

import pytest

from amp_nova.accounting.delivery import Last
from amp_nova.agent.operator import control_socket
from amp_nova.agent.operator import status as status_
from amp_nova.cmd.instances import NONE_HERE, lose_recently
from tests.support import reports
from tests.support.reports import account, best_effort, booked, instance, ips
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


@pytest.fixture
def watch(config):
    """Starts ``status --watch`` on a terminal of 80x24; what it draws up to a text."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "amp_nova.cmd.cli", "status", "--watch", "--config-file", config]
    size = {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen(words, **ends, env=os.environ | size) as process:
        os.close(theirs)
        yield partial(_read_until, ours)
        process.send_signal(signal.SIGINT)
    os.close(ours)
    assert process.returncode == 0


def screen(drawn):
    """The lines of the last whole drawing."""
    *_, last, _ = re.split(r"\r\x1b\[J", drawn)
    return [line.rstrip() for line in re.sub(r"\x1b\[\d+A", "", last).splitlines()]


def short(ratio, lost=0.25):
    """An account of a vCPU that got this part of its booking."""
    return account(last=Last(ratio=ratio), shortfall_ref_s=(0.0, lost, 0.0, 0.0, 0.0))


def test_watch_waits_for_the_agent_and_draws_in_every_cycle(run, serve, watch):
    """Only on a terminal; until Ctrl-C."""
    status, _, err = run("status", "--watch")
    assert (status, err.count("\n")) == (2, 1)
    assert "--watch draws a table on a terminal: leave it out for other formats" in err

    watch("no agent responds")
    serve(instance(booked()))

    *lines, losses = screen(watch("losses", 3))

    assert losses.startswith("losses are those of the last ")
    assert lines == [
        "All bookings are kept.",
        "+-------------------+------+--------+-------+------+",
        "| Domain            | VCPU | Booked | Ratio | Note |",
        "+-------------------+------+--------+-------+------+",
        "| instance-00000001 |    0 | 0.5    | 0.975 |      |",
    ]


def test_watch_shows_the_verdict_then_the_worst_of_a_host_with_many_vcpus(serve, watch):
    """One line each on 80x24, those without a booking last; the others are counted."""
    serve(
        *(instance(booked(), best_effort(1), name=f"instance-{n:08}") for n in range(20)),
        instance(booked(account=short(0.5)), name="instance-00000020"),
        instance(ips(note="unverifiable: no counter, " * 9), name="instance-00000021"),
        instance(name="instance-00000022", problem="its threads cannot be read"),
    )

    lines = screen(watch("losses", 3))
    first = [" ".join(row) for row in cells("\n".join(lines))]

    assert (len(lines), max(map(len, lines))) == (23, 80)
    assert lines[0] == "3 of 23 booked vCPUs are short, the worst: instance-00000021 vCPU 0"
    assert [row.split()[0] for row in first[1:5]] == [
        f"instance-000000{n}" for n in ("21", "22", "20", "00")
    ]
    assert lines[-1].startswith("25 more; losses are those of the last ")


def test_watch_shows_what_was_lost_since_it_began(serve, watch):
    """Not since the agent started; a vCPU that arrives has lost all that it lost."""
    serve(instance(booked(account=short(0.8, lost=100.0))))
    before = screen(watch("losses", 2))
    later = instance(booked(account=short(0.9, lost=0.5)), name="instance-00000002")
    serve(instance(booked(account=short(0.8, lost=100.25))), later)
    watch("instance-00000002")
    after = screen(watch("losses", 3))

    assert [row[-1] for row in cells("\n".join(before))] == ["Note", ""]
    assert [row[-1] for row in cells("\n".join(after))] == [
        "Note",
        "short contention 0.25 refcore s",
        "short contention 0.5 refcore s",
    ]


def test_losses_are_those_of_the_last_minute():
    """Of drawings 20 s apart, while 1 refcore s is lost in each second; seconds, and the loss."""
    past, seen = deque(), []
    for now_s in range(0, 140, 20):
        status = status_.status(reports.cycle(instance(booked(account=short(0.5, 7.0 + now_s)))))
        span_s = lose_recently(status, past, now_s)
        seen.append((span_s, status[0]["vcpus"][0]["shortfall_refcore_s"]["contention"]))

    assert seen == [(s, s) for s in (0, 20, 40, 60, 60, 60, 60)]


def _read_until(terminal, text, times=1):
    """What a terminal shows until it has shown this text so often."""
    seen = ""
    while seen.count(text) < times:
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
