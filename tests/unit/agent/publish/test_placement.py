# SPDX-License-Identifier: Apache-2.0
"""Placement that answers late, wrongly or not at all: over real sockets, with keystoneauth."""

import contextlib
import json
import socket
from http.server import BaseHTTPRequestHandler

import pytest

pytest.importorskip("keystoneauth1", reason="keystoneauth1 is not installed")

from keystoneauth1 import adapter, noauth, session

from amp_nova import conf as options
from amp_nova.agent import threads
from amp_nova.agent.publish import placement
from amp_nova.agent.publish.placement import Inventory
from amp_nova.flavor.placement_resources import Provider, provider_name, provider_uuid
from tests.support.programs import until
from tests.support.tenant import served


class FakePlacement:
    """A FAKE of Placement that knows one host and accepts everything.

    ``fault`` answers every request, ``refused`` those of one method.
    """

    def __init__(self):
        self.url, self.writes, self.fault, self.refused, self.providers = "", [], None, {}, []

    def answer(self, method, path, body):
        """Status and text."""
        fault = self.fault or self.refused.get(method)
        return fault or (200, json.dumps(self.read(method, path, body)))

    def read(self, method, path, body):
        """What Placement answers."""
        if method != "GET":
            self.writes.append((method, path, json.loads(body or "null")))
            return {}
        if "/inventories" in path:
            return {"resource_provider_generation": 1, "inventories": {}}
        if "/traits" in path:
            return {"resource_provider_generation": 1, "traits": []}
        return {"resource_providers": [{"uuid": "root", "name": "host1"}, *self.providers]}

    def updated(self):
        """Whether an inventory was written."""
        return any("/inventories" in path for _, path, _ in self.writes)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(threads, "BACK_OFF_S", 0.01)
    monkeypatch.setattr(threads, "WAIT_MAX_S", 0.05)
    found = FakePlacement()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_args):
            """Nothing."""

        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, text = found.answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815  # the library's names

    with served(Handler) as found.url:
        yield found


@contextlib.contextmanager
def running(url, timeout_s=60):
    """An inventory thread that has one core type to offer."""
    client = adapter.Adapter(
        session.Session(noauth.NoAuth(), timeout=timeout_s),
        endpoint_override=url,
        raise_exc=False,
    )
    found = Inventory(client, "host1")
    name = provider_name("host1", "slow")
    found.offer(
        (Provider(provider_uuid("host1", "slow"), name, 2000, 0, frozenset({"CUSTOM_AMP_X"})),)
    )
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.mark.parametrize(
    "fault",
    [
        (500, "internal error\n" * 1000),
        (409, "{}"),
        (200, ""),
        (200, "[]"),
        (200, '{"resource_providers": [{}]}'),
        (200, '{"resource_providers": ' + "[" * 5000),
    ],
)
@pytest.mark.fault(
    "Placement answers 409, 500 or nonsense", "asked again with back-off; one line in the log"
)
def test_wrong_answers_are_retried_until_they_are_right(fake, caplog, fault):
    """One line in the log, no traceback, and the inventory is written in the end."""
    fake.fault = fault
    with running(fake.url) as inventory:
        until(lambda: "retrying until it succeeds" in caplog.text)
        assert inventory.last_success_s is None
        fake.fault = None
        until(lambda: inventory.last_success_s)

    assert fake.updated()
    assert "Traceback" not in caplog.text
    errors = [r for r in caplog.records if r.levelname == "ERROR"]
    assert len(errors) == 1
    assert len(errors[0].getMessage()) < 600


def test_a_provider_that_may_not_be_deleted_is_logged_and_tried_again(fake, caplog):
    """The provider of a core type that is gone, and a role that Placement does not let delete."""
    fake.providers = [{"uuid": "gone", "name": provider_name("host1", "fast")}]
    fake.refused = {"DELETE": (403, "policy does not allow it")}
    with running(fake.url) as inventory:
        until(lambda: "DELETE /resource_providers/gone was answered 403" in caplog.text)
        assert inventory.last_success_s is None
        fake.refused = {}
        until(lambda: inventory.last_success_s)

    assert ("DELETE", "/resource_providers/gone", None) in fake.writes


@pytest.mark.fault("Placement is silent", "each request has a time-out; the thread goes on")
def test_silence_has_a_time_out(fake, caplog):
    """A socket that accepts and never answers; the thread goes on and reports."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with running(url, timeout_s=0.1) as inventory:
            until(lambda: "retrying until it succeeds" in caplog.text)
            assert not inventory.hangs
    assert "timed out" in caplog.text


def test_requests_have_a_time_out_by_default(tmp_path):
    """And another one if ``[placement] timeout`` says so."""
    for more, expected in (("", placement.TIMEOUT_S), ("timeout = 7", 7)):
        path = tmp_path / "amp-nova.conf"
        path.write_text(f"[placement]\nauth_type = none\nendpoint = http://x\n{more}\n")
        found = placement.connect(options.load(files=[str(path)]))
        assert found.session.timeout == expected
