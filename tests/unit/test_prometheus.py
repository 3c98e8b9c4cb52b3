# SPDX-License-Identifier: Apache-2.0
"""One client of Prometheus for all: bounded, and only where it was told to go."""

import time
from http.server import BaseHTTPRequestHandler

import pytest

from amp_nova.prometheus import Prometheus, QueryFailed
from tests.support.tenant import reply, served

WITHIN_S = 0.3
RIGHT = b'{"status": "success", "data": {"result": []}}'


def dripping(handler):
    """A byte at a time, for five seconds."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b" ")
        time.sleep(0.05)


@pytest.fixture
def asked(monkeypatch):
    """Asks a server that answers as told; the result, and the paths and passwords it was sent."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def asked_(respond, user=""):
        sent = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                sent.append((self.path, self.headers.get("Authorization")))
                respond(self)

            def log_message(self, *_):
                pass

        with served(Handler) as url:
            server = Prometheus(url.replace("//", f"//{user}"))
            try:
                return server.query("query", WITHIN_S, 1000, query="up{}"), sent
            except QueryFailed as exc:
                return exc, sent

    return asked_


def test_a_user_and_a_password(asked):
    """They may have any characters, and are not part of the address that is shown."""
    found, sent = asked(lambda handler: reply(handler, RIGHT), "me:se%40cret@")

    assert found == []
    assert sent == [("/api/v1/query?query=up%7B%7D&timeout=0.3s", "Basic bWU6c2VAY3JldA==")]
    assert Prometheus("https://me:se%40cret@host:9090/prom/").url == "https://host:9090/prom"


@pytest.mark.parametrize(
    ("respond", "said", "status"),
    [
        (dripping, "more than 1000 bytes or 0.3 s", 0),
        (lambda h: reply(h, b" " * 2000), "more than 1000 bytes or 0.3 s", 0),
        (lambda h: reply(h, b"", 302, Location="/elsewhere"), "Found", 302),
        (lambda h: reply(h, b'{"error":"no such metric"}', 422), "no such metric", 422),
        (lambda h: reply(h, b"<html>"), "it is not Prometheus", 200),
        (lambda h: h.connection.close(), "", 0),
    ],
    ids=["dripping", "huge", "elsewhere", "error", "no JSON", "closed"],
)
def test_what_is_no_answer(asked, respond, said, status):
    """It holds nobody, and nothing is asked elsewhere."""
    began_s = time.monotonic()

    failed, sent = asked(respond)

    assert time.monotonic() - began_s < 3.0
    assert isinstance(failed, QueryFailed)
    assert (said in str(failed), failed.status, len(sent)) == (True, status, 1)


def test_a_password_that_is_not_quoted_is_not_shown():
    """Then the address has a port that is no number, or a host that is no name."""
    for address in (
        "http://me:se/cret@host",
        "http://me:secret@ho st",
        "http://" + "x" * 70 + "é.",
    ):
        with pytest.raises(QueryFailed, match=r"^(the address is not valid|.*not known.*)$"):
            Prometheus(address).query("query", WITHIN_S, 1000, query="up")
