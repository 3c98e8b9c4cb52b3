"""The exporter's HTTP server, over real sockets."""

import base64
import contextlib
import functools
import gzip
import os
import resource
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from http import HTTPStatus

import pytest

from amp_nova.agent.publish import web_access, web_server
from amp_nova.agent.publish.exporter import Exporter
from amp_nova.agent.publish.web_server import Page, WebServer, bind
from amp_nova.exceptions import ConfigInvalid
from tests import reports
from tests.reports import booked, instance

bcrypt = pytest.importorskip("bcrypt", reason="bcrypt is not installed")


@contextlib.contextmanager
def serving(routes, web_config_file=None, waiting=0):
    """A server in a thread of its own; its URL. ``waiting`` clients connect before it starts."""
    server = WebServer(routes, web_config_file)
    stop = threading.Event()
    listening = bind("127.0.0.1", 0)
    clients = [socket.create_connection(listening.getsockname(), timeout=5) for _ in range(waiting)]
    url = f"{server.scheme}://127.0.0.1:{listening.getsockname()[1]}"
    thread = threading.Thread(target=server.run, args=(listening, lambda: not stop.is_set()))
    thread.start()
    try:
        yield (url, clients) if waiting else url
    finally:
        for client in clients:
            client.close()
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def port_of(url):
    return int(url.rpartition(":")[2])


def get(url, context=None, **headers):
    """Status, headers and body of a GET."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.headers, exc.read()


def raw(url, *parts, shut=False):
    """What a client that sends these bytes receives until the server closes."""
    with socket.create_connection(("127.0.0.1", port_of(url)), timeout=30) as conn:
        for part in parts:
            conn.sendall(part)
        if shut:
            conn.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := conn.recv(65536):
                received += data
        return received


def hello(_headers):
    return Page(b"hello\n")


def test_a_route_is_served_and_others_are_named():
    """By path, whatever the query; HEAD has no body."""
    with serving({"/hello": hello}) as url:
        status, headers, body = get(f"{url}/hello?x=1")
        missing = get(f"{url}/other")
        head = raw(url, b"HEAD /hello HTTP/1.1\r\n\r\n")
        post = raw(url, b"POST /hello HTTP/1.1\r\n\r\n")

    assert (status, body) == (200, b"hello\n")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert missing[::2] == (404, b"not here; see /hello\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head.endswith(b"\r\n\r\n")
    assert post.startswith(b"HTTP/1.1 405 ")


def test_a_page_that_fails_is_an_error_and_the_next_is_served(caplog):
    """The client is told; the reason is in the log."""
    with serving({"/bad": lambda _headers: {}["a fault"], "/hello": hello}) as url:
        bad, good = get(f"{url}/bad"), get(f"{url}/hello")

    assert (bad[0], bad[2]) == (500, b"it cannot be shown: see the log\n")
    assert good[0] == 200
    assert "/bad cannot be shown" in caplog.text


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x00\xff" * 100 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000,
        b"GET /hello HTTP/9.9\r\n" + b"no colon\r\n:\r\n\r\n",
    ],
)
def test_garbage_is_survived(sent, caplog):
    """Whatever a client sends, the next one is served, and no traceback is logged."""
    with serving({"/hello": hello}) as url:
        with contextlib.suppress(OSError):
            raw(url, sent, shut=True)
        assert get(f"{url}/hello")[0] == 200
    assert "Traceback" not in caplog.text


def test_a_slow_client_is_cut_off(monkeypatch):
    """However slowly it sends, a connection ends in time."""
    monkeypatch.setattr(web_server, "CONNECTION_S", 0.2)
    with serving({"/hello": hello}) as url:
        assert raw(url, b"GET /hello") == b""


@pytest.mark.fault("8,000 idle connections to the exporter", "a client is answered")
def test_eight_thousand_idle_connections_do_no_harm():
    """A scrape is answered while they are held, and no descriptor stays behind."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8000
    if hard < wanted + 500:
        pytest.skip(f"this process may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted + 500), hard))
    idle = []
    try:
        with serving({"/hello": hello}) as url:
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(wanted):
                idle.append(socket.create_connection(("127.0.0.1", port_of(url)), timeout=30))
            answers = [get(f"{url}/hello")[0] for _ in range(20)]
            taken = len(os.listdir("/proc/self/fd")) - before - wanted
    finally:
        for conn in idle:
            conn.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert answers == [200] * 20
    assert taken <= web_server.CONNECTIONS_MAX + 4


def test_a_client_that_is_turned_away_before_it_was_served_knows_at_once():
    """They are accepted one right after the other; the oldest has to go for the last."""
    with serving({"/hello": hello}, waiting=web_server.CONNECTIONS_MAX + 1) as (_, clients):
        try:
            told = clients[0].recv(1)
        except ConnectionResetError:
            told = b""

    assert told == b""


def test_a_client_that_does_not_read_holds_nobody_up():
    """Sixteen that asked for a large page and wait; the next one is answered."""
    large = Page(b"x" * 50_000_000)
    clients = []
    with serving({"/large": lambda _headers: large, "/hello": hello}) as url:
        for _ in range(web_server.CONNECTIONS_MAX):
            conn = socket.create_connection(("127.0.0.1", port_of(url)), timeout=30)
            conn.sendall(b"GET /large HTTP/1.1\r\n\r\n")
            clients.append(conn)
        status = get(f"{url}/hello")[0]
    for conn in clients:
        conn.close()

    assert status == 200


def test_metrics_are_rendered_once_per_cycle(monkeypatch):
    """However many clients ask; each format once."""
    exporter = Exporter(reuse_s=3600)
    rendered = []
    monkeypatch.setattr(exporter, "collect", lambda: rendered.append(1) or iter(()))
    with serving(exporter.routes) as url:
        for _ in range(50):
            assert get(f"{url}/metrics")[0] == 200
        assert len(rendered) == 1
        exporter.update(reports.cycle(instance(booked())))
        get(f"{url}/metrics")
        assert len(rendered) == 2


def test_formats_and_compression_are_negotiated():
    """As Prometheus asks for them."""
    exporter = Exporter()
    exporter.update(reports.cycle(instance(booked())))
    with serving(exporter.routes) as url:
        plain = get(f"{url}/metrics")
        accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4"
        zipped = get(f"{url}/metrics", **{"Accept": accept, "Accept-Encoding": "gzip"})
        unzipped = get(f"{url}/metrics", Accept=accept)

    assert plain[1]["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"amp_vcpu_delivered_ratio{" in plain[2]
    assert zipped[1]["Content-Type"].startswith("application/openmetrics-text")
    assert gzip.decompress(zipped[2]).endswith(b"# EOF\n")
    assert unzipped[2] == gzip.decompress(zipped[2])
    assert zipped[1]["Content-Encoding"] == "gzip"
    assert unzipped[1]["Content-Encoding"] is None


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate and its key."""
    folder = tmp_path_factory.mktemp("tls")
    if subprocess.run(["which", "openssl"], capture_output=True, check=False).returncode:
        pytest.skip("openssl is not installed")
    make_certificate(folder)
    return folder


def make_certificate(folder):
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=host", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    (folder / "key.pem").chmod(0o600)


def configured(folder, text, mode=0o640):
    path = folder / "web.yml"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


TLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"


@functools.cache
def users():
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    return f"basic_auth_users:\n  prometheus: {hashed}\n"


def basic(user, secret):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()}


def test_tls_and_basic_authentication(certificate, monkeypatch):
    """Only with the certificate and the right password."""
    monkeypatch.setattr(web_server, "REFUSED_PAUSE_S", 0.0)
    path = configured(certificate, TLS + users())
    context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with serving({"/hello": hello}, path) as url:
        ask = functools.partial(get, f"{url}/hello", context)
        assert url.startswith("https://")
        assert ask()[0] == HTTPStatus.UNAUTHORIZED
        assert ask()[1]["WWW-Authenticate"] == "Basic"
        for wrong in (basic("prometheus", "x"), basic("root", "secret"), basic("x", "")):
            assert ask(**wrong)[0] == HTTPStatus.UNAUTHORIZED
        for garbage in ("Basic", "Basic !", "Bearer x", "Basic " + "A" * 2000, "Basic /w=="):
            assert ask(Authorization=garbage)[0] == HTTPStatus.UNAUTHORIZED
        assert ask(**basic("prometheus", "secret"))[0] == 200
        with pytest.raises(OSError, match=r"(?i)certificate.verify.failed"):
            get(f"{url}/hello", ssl.create_default_context())
        assert raw(url, b"GET /hello HTTP/1.1\r\n\r\n") == b""


def test_a_right_password_is_hashed_once(tmp_path, monkeypatch):
    """Not at every scrape: hashing takes a tenth of a second of a core."""
    hashed = []
    matches = web_access.matches
    monkeypatch.setattr(web_access, "matches", lambda *a: hashed.append(1) or matches(*a))
    with serving({"/hello": hello}, configured(tmp_path, users())) as url:
        for _ in range(5):
            assert get(f"{url}/hello", **basic("prometheus", "secret"))[0] == 200

    assert len(hashed) == 1


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path, certificate):
    """A broken one leaves the one before in force."""
    make_certificate(tmp_path)
    path = configured(tmp_path, TLS)
    with serving({"/hello": hello}, path) as url:
        get(f"{url}/hello", ssl.create_default_context(cafile=str(tmp_path / "cert.pem")))
        (tmp_path / "cert.pem").write_text("half a certif")
        old = ssl.create_default_context()
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        assert get(f"{url}/hello", old)[0] == 200
        for name in ("cert.pem", "key.pem"):
            (tmp_path / name).write_bytes((certificate / name).read_bytes())
        new = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
        assert get(f"{url}/hello", new)[0] == 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "the file is not a list of KEY: VALUE"),
        ("tls_server_confg: {}", "'tls_server_confg' in the file is not supported"),
        ("tls_server_config: {cert_file: c.pem}", "key_file is missing in tls_server_config"),
        ("tls_server_config: {cipher_suites: []}", "'cipher_suites' in tls_server_config is not"),
        (
            TLS + "  client_auth_type: Never",
            "client_auth_type is 'Never': give one of NoClientCert",
        ),
        (TLS + "  client_auth_type: RequireAndVerifyClientCert", "needs client_ca_file"),
        (TLS + "  min_version: 1", "min_version is '1': give one of TLS12, TLS13"),
        (TLS.replace("cert.pem", "none.pem"), "No such file or directory"),
        ("basic_auth_users: {me: secret}", "the password of 'me' is not a bcrypt hash"),
        ("basic_auth_users: {me: $2y$31$" + "a" * 53 + "}", "the bcrypt cost of 'me' is 31"),
        ("{", "while parsing a flow node"),
        ("\x00", "unacceptable character"),
        ("[" * 5000, "recursion"),
    ],
)
def test_a_wrong_web_configuration_is_one_sentence(certificate, text, said):
    """It names the file, what is wrong, and the remedy; a secret is never shown."""
    with pytest.raises(ConfigInvalid) as caught:
        WebServer({}, configured(certificate, text))

    assert str(caught.value).startswith("[exporter] web_config_file = ")
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_credentials_open_to_others_are_refused(certificate, tmp_path):
    """The web configuration and the key; the message says what to run."""
    with pytest.raises(ConfigInvalid, match="run chmod 0640"):
        WebServer({}, configured(tmp_path, users(), mode=0o644))
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_bytes((certificate / name).read_bytes())
    (tmp_path / "key.pem").chmod(0o644)
    with pytest.raises(ConfigInvalid, match=r"key\.pem holds credentials and is open to others"):
        WebServer({}, configured(tmp_path, TLS))


def test_a_burst_of_clients_leaves_the_process_responsive():
    """Hundreds of clients at once: each is answered or closed, none waits for ever."""
    with serving({"/hello": hello}) as url:
        outcomes = []

        def ask():
            try:
                outcomes.append(get(f"{url}/hello")[0])
            except OSError:
                outcomes.append(0)

        began = time.monotonic()
        threads = [threading.Thread(target=ask) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert time.monotonic() - began < 60

    assert len(outcomes) == 200
    assert 200 in outcomes
