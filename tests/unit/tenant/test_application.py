# SPDX-License-Identifier: Apache-2.0
"""Who is told what. The filter is a fake (``Filter``); the real one is in tests/functional."""

import json
import socket
import ssl
import time
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace

import pytest

from amp_nova.tenant import application
from amp_nova.tenant.application import BODY_BYTES_MAX, Application
from amp_nova.tenant.prometheus import ServerFigures
from tests.support.tenant import (
    OTHER_SERVER,
    OWNERS,
    PROJECT,
    SERVER,
    TOKENS,
    call,
    conf,
    half,
    nova,
    nova_request,
    reply,
    series,
    served,
    settings,
)
from tests.unit.agent.publish.test_web_server import make_certificate

SECRET = "never to be told to others"


class Filter:
    """A FAKE of Keystone's filter: it knows ``TOKENS``, and removes what a client forges."""

    def __init__(self, application, nova="http://127.0.0.1:9"):
        self.application, self.nova = application, nova

    def __call__(self, request, start):
        forged = [k for k in request if k.startswith("HTTP_X_") and k != "HTTP_X_AUTH_TOKEN"]
        request = {k: v for k, v in request.items() if k not in forged}
        known = TOKENS.get(request.get("HTTP_X_AUTH_TOKEN"))
        if known is None:
            start("401 Unauthorized", [])
            return [b"{}"]
        request["HTTP_X_IDENTITY_STATUS"] = "Confirmed"
        request |= {f"HTTP_X_{name}": value for name, value in known.items()}
        endpoint = lambda _session, **_wanted: self.nova  # noqa: E731
        request["keystone.token_auth"] = SimpleNamespace(get_endpoint=endpoint)
        return self.application(request, start)


def figures(server, project, host_id=""):
    """Figures of a server in its own project alone, as Prometheus answers them."""
    known = OWNERS.get(server) == project
    return {"told": SECRET if server == SERVER else "other"} if known else {}


@pytest.fixture
def service():
    """The application behind the fake filter, and a fake Nova."""
    with nova() as url:
        yield Filter(Application(conf(), figures), url)


def test_nova_and_the_owner_are_told(service):
    """Nova of a project that it names, as a guest reads vendor_data2.json; an owner of his own."""
    nova_is = call(service, body=nova_request(), HTTP_X_AUTH_TOKEN="nova")
    owner_is = call(service, "GET", f"/v1/servers/{SERVER}", HTTP_X_AUTH_TOKEN="owner")

    assert nova_is == owner_is == (200, {"told": SECRET})


@pytest.mark.parametrize(
    ("token", "status"),
    [("other", 404), ("admin", 404), ("domain", 403), ("nova", 404), ("stolen", 401), ("", 401)],
)
def test_others_are_not_told_even_if_nova_shows_them_the_server(service, token, status):
    """An administrator of another project sees it in Nova; Prometheus is his way to figures."""
    asked = call(service, "GET", f"/v1/servers/{SERVER}", HTTP_X_AUTH_TOKEN=token)

    assert asked == (status, {})


@pytest.mark.parametrize("token", ["owner", "other", "admin", "domain"])
def test_only_the_service_role_vouches_for_servers(service, token):
    """Not even an administrator's token does."""
    assert call(service, body=nova_request(), HTTP_X_AUTH_TOKEN=token) == (403, {})


def test_the_role_is_an_option():
    """And compared as Keystone does, without regard to case."""
    TOKENS["vendor"] = {"PROJECT_ID": "x", "ROLES": "Vendor"}
    service = Filter(Application(conf(role="vendor"), figures))
    try:
        assert call(service, body=nova_request(), HTTP_X_AUTH_TOKEN="vendor")[0] == 200
        assert call(service, body=nova_request(), HTTP_X_AUTH_TOKEN="nova")[0] == 403
    finally:
        del TOKENS["vendor"]


def test_without_the_filter_nobody_is_told():
    """A deployment that forgets it serves nothing, whatever roles a request claims."""
    bare = Application(conf(), figures)

    assert call(bare, body=nova_request(), HTTP_X_ROLES="service")[0] == 401
    path = f"/v1/servers/{SERVER}"
    assert call(bare, "GET", path, HTTP_X_PROJECT_ID=PROJECT)[0] == 401
    assert call(bare, body=nova_request(), HTTP_X_IDENTITY_STATUS="Invalid")[0] == 401


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (500, b"", 503),
        (200, b"<html>", 503),
        (200, b"{}", 503),
        (200, b'{"server": []}', 503),
        (200, json.dumps({"server": {"id": SERVER}}).encode(), 404),
        (200, json.dumps({"server": {"id": OTHER_SERVER, "tenant_id": PROJECT}}).encode(), 404),
        (302, b"", 404),
        (403, b"", 404),
    ],
)
def test_if_nova_does_not_show_the_server_nothing_is_told(status, body, told):
    """A wrong answer is not a yes."""
    with nova((status, body)) as url:
        service = Filter(Application(conf(), figures), url)
        asked = call(service, "GET", f"/v1/servers/{SERVER}", HTTP_X_AUTH_TOKEN="owner")

    assert asked == (told, {})


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:9"], ids=["not in the catalogue", "down"])
def test_if_nova_cannot_be_asked_nothing_is_told(url):
    """503, so that the user tries again."""
    service = Filter(Application(conf(), figures), url)

    asked = call(service, "GET", f"/v1/servers/{SERVER}", HTTP_X_AUTH_TOKEN="owner")

    assert asked == (503, {})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff\xfe", 400),
        (b"[" * 200_000, 400),
        (b'{"x": ' * 100_000, 400),
        (nova_request(None), 400),
        (nova_request(SERVER + "\n"), 400),
        (nova_request(SERVER.upper()), 400),
        (nova_request(f'{SERVER}"}} or {{resource!="'), 400),
        (nova_request(project=f'{PROJECT}",project=~".*'), 400),
        (nova_request(project=""), 400),
        (b" " * (BODY_BYTES_MAX + 1), 413),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_nova_would_not_send_is_refused(service, body, status):
    """Whoever has the service role may still be wrong."""
    assert call(service, body=body, HTTP_X_AUTH_TOKEN="nova") == (status, {})


@pytest.mark.parametrize("length", ["-1", "many", "99999999999999999999", "1e3"])
def test_a_length_that_is_none_is_refused(service, length):
    """Before anything is read."""
    asked = call(service, body=b"", HTTP_X_AUTH_TOKEN="nova", CONTENT_LENGTH=length)

    assert asked == (413, {})


def test_all_that_nova_may_send_is_accepted(service):
    """User data of 64 KiB, and 128 items of metadata in characters that JSON escapes."""
    metadata = {f"{n:03}" + "ü" * 252: "ü" * 255 for n in range(128)}
    body = nova_request(metadata=metadata, **{"user-data": "A" * 65535})

    assert call(service, body=body, HTTP_X_AUTH_TOKEN="nova")[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/vendordata"),
        ("POST", f"/v1/servers/{SERVER}"),
        ("GET", "/v1/servers"),
        ("GET", f"/v1/servers/{SERVER}/"),
        ("GET", f"/v1/servers/{SERVER}\n"),
        ("GET", "/v1/servers/../vendordata"),
        ("GET", "/"),
    ],
)
def test_there_is_nothing_else(service, method, path):
    """No other method or path."""
    assert call(service, method, path, HTTP_X_AUTH_TOKEN="nova") == (404, {})


GUEST = {"body": nova_request(), "HTTP_X_AUTH_TOKEN": "nova"}
OWNER = {"method": "GET", "path": f"/v1/servers/{SERVER}", "HTTP_X_AUTH_TOKEN": "owner"}


@pytest.fixture
def hostile(fake):
    """Prometheus has newer and larger figures of this server and project from another host."""
    honest = half()
    evil = half("compute-6:9178", steps=31, start=9e6, until_s=time.time() + 1.0)
    evil[0] = series("instance_booked_refcores", [99.0] * 31, "compute-6:9178")
    for each in honest:
        each["metric"]["host"] = "compute-1.example.org"
    for each in evil:
        each["metric"]["host"] = "compute-6.example.org"
    fake.samples = [*honest, *evil]
    return fake


@pytest.mark.parametrize("asked", [GUEST, OWNER], ids=["guest", "owner"])
def test_guest_and_owner_are_told_what_the_host_says_that_nova_names(hostile, asked):
    """Another host may export series of this server and project, but not under this host's name."""
    with nova() as url:
        service = Filter(Application(conf(), ServerFigures(settings(hostile.url)).figures), url)
        status, told = call(service, **asked)

    assert (status, told["booked_refcores"]) == (200, 0.5)
    assert told["delivered_refcores"] == pytest.approx(0.5)
    assert told["window_s"] == 300.0


@pytest.mark.parametrize(
    "answer", [(403, b"{}"), (503, b""), (200, b"<html>")], ids=["forbidden", "down", "wrong"]
)
def test_if_nova_names_no_host_a_guest_is_told_what_no_other_host_contradicts(hostile, answer):
    """Its token may be unable to see servers. No figure is better than that of the wrong host."""
    with nova(answer) as url:
        service = Filter(Application(conf(), ServerFigures(settings(hostile.url)).figures), url)
        assert call(service, **GUEST) == (200, {})

        hostile.samples = hostile.samples[:5]
        service = Filter(Application(conf(), ServerFigures(settings(hostile.url)).figures), url)
        assert call(service, **GUEST)[1]["booked_refcores"] == 0.5


def test_a_guest_does_not_wait_long_for_nova(monkeypatch):
    """Nova's metadata API would give up, and the guest would have no figures at all."""
    monkeypatch.setattr(application, "GUEST_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        service = Filter(
            Application(conf(), figures), f"http://127.0.0.1:{silent.getsockname()[1]}"
        )
        began_s = time.monotonic()
        assert call(service, **GUEST) == (200, {"told": SECRET})
    assert time.monotonic() - began_s < application.NOVA_S / 2


def test_a_redirect_does_not_take_the_users_token_elsewhere():
    """Nova's address may be answered by something else."""
    asked = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers["X-Auth-Token"])
            reply(self, json.dumps({"server": {"id": SERVER, "tenant_id": PROJECT}}).encode())

    with served(Elsewhere) as elsewhere:

        class Redirect(BaseHTTPRequestHandler):
            def do_GET(self):
                reply(self, b"", 302, Location=f"{elsewhere}/servers/{SERVER}")

        with served(Redirect) as url:
            service = Filter(Application(conf(), figures), url)
            answers = [call(service, **each) for each in (OWNER, GUEST)]

    assert asked == []
    assert [status for status, _ in answers] == [404, 200]


@pytest.mark.parametrize(
    ("options", "status"), [({}, 503), ({"cafile": "cert.pem"}, 200), ({"insecure": True}, 200)]
)
def test_nova_is_trusted_by_the_options_of_keystones_filter(tmp_path, options, status):
    """Clouds have authorities of their own. What cannot be verified is not asked."""
    make_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    options = {k: f"{tmp_path / v}" if k == "cafile" else v for k, v in options.items()}
    with nova(tls=tls) as url:
        about = conf()
        vars(about.keystone_authtoken).update(options)
        service = Filter(Application(about, figures), url)

        assert call(service, **OWNER)[0] == status


def test_each_query_names_one_server_and_its_project(fake):
    """Forged requests, through the real filter: tests/functional/test_vendordata.py."""
    with nova() as url:
        service = Filter(Application(conf(), ServerFigures(settings(fake.url)).figures), url)
        assert call(service, **GUEST)[1]["age_s"] >= 0
        assert call(service, **OWNER)[1]["booked_refcores"] == 0.5

    own = f'resource="{SERVER}",project="{PROJECT}"'
    for expression in fake.asked:  # and nothing else
        assert own in expression
        assert expression.count('"') == (6 if expression.endswith("[300s]") else 4)
