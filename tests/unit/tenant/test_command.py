# SPDX-License-Identifier: Apache-2.0
"""``amp-nova-vendordata`` where it cannot run; where it can, it is in tests/functional."""

import socket
import sys
from types import SimpleNamespace

import pytest

from amp_nova.http_server import CONNECTIONS_MAX, HttpServer
from amp_nova.tenant import server
from amp_nova.tenant.server import main


def test_without_keystones_filter_it_says_what_to_install(monkeypatch, capsys):
    """One sentence, exit status 2."""
    monkeypatch.setitem(sys.modules, "keystonemiddleware", None)

    assert main([]) == 2

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "install amp-nova[vendordata]" in said


@pytest.mark.parametrize(("words", "status"), [(["--help"], 0), (["--zzz"], 2)])
def test_it_explains_itself(words, status, capsys):
    """With an example; a misspelt option is one sentence."""
    with pytest.raises(SystemExit) as stop:
        main(words)

    out, err = capsys.readouterr()
    assert stop.value.code == status
    assert "example: amp-nova-vendordata" in out or "unrecognized arguments: --zzz" in err


def test_half_requests_and_large_headers_hold_nobody_up(monkeypatch):
    """Anybody may connect, before Keystone's filter sees a token."""
    said = []

    def ask(address, *sent):
        with socket.create_connection(address, timeout=10) as conn:
            for part in sent:
                conn.sendall(part)
            return conn.recv(12)

    def attacked(self, _beat):
        half = [socket.create_connection(self.bind_addr) for _ in range(CONNECTIONS_MAX)]
        for conn in half:
            conn.sendall(b"GET / HTTP/1.1\r\nX: ")
        said.append(ask(self.bind_addr, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
        said.append(ask(self.bind_addr, b"GET / HTTP/1.1\r\nX: ", b"x" * 20_000, b"\r\n\r\n"))
        length = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\n"
        said.append(ask(self.bind_addr, length))
        for conn in half:
            conn.close()
        self.stop()

    def application(_request, start):
        start("401 Unauthorized", [])
        return [b""]

    options = SimpleNamespace(vendordata=SimpleNamespace(address="127.0.0.1", port=0))
    monkeypatch.setattr(server, "configured", lambda _files: (options, application))
    monkeypatch.setattr(HttpServer, "run", attacked)

    assert main([]) == 0

    assert said == [b"HTTP/1.1 401", b"HTTP/1.1 413", b"HTTP/1.1 400"]
