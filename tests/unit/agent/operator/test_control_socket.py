# SPDX-License-Identifier: Apache-2.0
"""The control socket: one question, one answer."""

import contextlib
import json
import socket
import stat
import threading
import time

import pytest

from amp_nova.agent.operator import control_socket
from amp_nova.exceptions import AmpError, ConfigInvalid


@pytest.fixture
def serve(tmp_path):
    """Serves a function's answers, in the test's folder."""
    servers = []

    def serve_(answer=lambda question: {"you asked": question}):
        servers.append(control_socket.Control(tmp_path, answer))
        return servers[-1]

    yield serve_
    for server in servers:
        server.close()


def raw(tmp_path, data):
    """The reply to these bytes."""
    with socket.socket(socket.AF_UNIX) as conn:
        conn.settimeout(5)
        conn.connect(str(control_socket.path(tmp_path)))
        conn.sendall(data)
        return conn.makefile("rb").read()


def test_no_agent_is_none(serve, tmp_path):
    """Neither a missing nor a stale socket is an error; the next agent replaces it and answers.

    Only its owner may use it.
    """
    assert control_socket.query(tmp_path, {}) is None

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(control_socket.path(tmp_path)))

    assert control_socket.query(tmp_path, {}) is None
    serve()
    assert stat.S_IMODE(control_socket.path(tmp_path).stat().st_mode) == 0o600
    answer = control_socket.query(tmp_path, {"command": "status"})
    assert answer == {"you asked": {"command": "status"}}


def test_nobody_waits_for_a_silent_client(tmp_path):
    """Neither another one nor the end of the agent, which leaves no socket behind."""
    control = control_socket.Control(tmp_path, lambda question: question)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(control_socket.path(tmp_path)))
        began_s = time.monotonic()
        assert control_socket.query(tmp_path, {"a": 1}) == {"a": 1}

        control.close()

        assert time.monotonic() - began_s < 4.0  # it may stay for 5 s
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff\xfe\n", "the request is not JSON of at most 4096 bytes"),
        (b"[" * 3000 + b"\n", "the request is not JSON of at most 4096 bytes"),
        (b"[1]\n", "the request is not a JSON object"),
    ],
)
def test_broken_question_is_answered_with_an_error(serve, tmp_path, data, said):
    """The answer is an object that says what was wrong."""
    serve()

    assert json.loads(raw(tmp_path, data)) == {"error": said}


def test_oversized_question_is_refused(serve, tmp_path):
    """Both sides of the socket limit its size."""
    serve()

    with pytest.raises(AmpError, match="the request is too long"):
        control_socket.query(tmp_path, {"instance": "x" * 4096})
    with contextlib.suppress(OSError):  # it hangs up while the question is sent
        raw(tmp_path, b"x" * 1_000_000)
    assert control_socket.query(tmp_path, {}) == {"you asked": {}}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (AmpError("no instance 'x'"), "no instance 'x'"),
        (KeyError("fault"), "the agent failed to answer: see its log"),
    ],
)
def test_errors_of_the_agent_are_answered(serve, tmp_path, fault, said):
    """A sentence for the user is passed on; a fault is in the log, and the answer says so."""

    def answer(_question):
        raise fault

    serve(answer)

    assert control_socket.query(tmp_path, {}) == {"error": said}


def test_a_client_that_hangs_up_is_ignored(serve, tmp_path, capfd):
    """No traceback is printed into the agent's log; the next one gets the long answer whole."""
    asked = threading.Event()
    go = threading.Event()

    def answer(_question):
        asked.set()
        go.wait(5)
        return {"long": "x" * 5_000_000}

    serve(answer)
    with socket.socket(socket.AF_UNIX) as conn:
        conn.connect(str(control_socket.path(tmp_path)))
        conn.sendall(b"{}\n")
        assert asked.wait(5)
    go.set()

    assert len(control_socket.query(tmp_path, {})["long"]) == 5_000_000
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("reply", [b"", b"garbage\n", b'{"status": [', b"[1]\n", None])
def test_an_agent_that_dies_or_hangs_is_one_sentence(tmp_path, monkeypatch, reply):
    """Not a traceback; there is a time-out."""
    monkeypatch.setattr(control_socket, "_TIMEOUT_S", 5.0 if reply is not None else 0.05)
    said = "does not answer: timed out" if reply is None else "returned an invalid reply: see its"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(control_socket.path(tmp_path)))
        listener.listen()

        def answer():
            conn, _ = listener.accept()
            with conn:
                conn.recv(4096)
                conn.sendall(reply)

        thread = threading.Thread(target=answer)
        if reply is not None:
            thread.start()
        with pytest.raises(AmpError, match=said):
            control_socket.query(tmp_path, {})
        if reply is not None:
            thread.join()


def test_unusable_folder_is_one_sentence(tmp_path):
    """A path that is missing or too long is named, with the remedy."""
    for folder in (tmp_path / "missing", tmp_path / ("x" * 120)):
        with pytest.raises(ConfigInvalid, match="set \\[agent\\] state_path to") as caught:
            control_socket.Control(folder, lambda question: question)
        assert str(folder) in str(caught.value)
        assert "None" not in str(caught.value)
