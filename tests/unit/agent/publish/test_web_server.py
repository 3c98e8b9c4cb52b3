# SPDX-License-Identifier: Apache-2.0
"""The exporter's HTTP server, over real sockets."""

import contextlib
import gzip
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from amp_nova import http_server
from amp_nova.agent.publish import web_server
from amp_nova.agent.publish.exporter import Exporter
from amp_nova.agent.publish.web_server import Page, WebServer, WebSettings
from amp_nova.exceptions import ConfigInvalid
from amp_nova.tenant.application import BODY_BYTES_MAX
from tests.support import reports
from tests.support.reports import booked, instance

HOST = b"Host: 127.0.0.1\r\n"


@contextlib.contextmanager
def serving(routes, **settings):
    """A server in threads of its own; its URL."""
    web = WebServer(routes, WebSettings(**settings))
    server, stop = web.bind(), threading.Event()
    thread = threading.Thread(target=web.run, args=(server, lambda: not stop.is_set()))
    thread.start()
    try:
        yield f"{web.scheme}://127.0.0.1:{server.bind_addr[1]}"
    finally:
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


def hello():
    return Page(b"hello\n")


def test_a_route_is_served_and_others_are_named(caplog):
    """By path, whatever the query; HEAD has no body. A page that fails is an error of its own."""
    with serving({"/bad": lambda: {}["a fault"], "/hello": hello}) as url:
        bad = get(f"{url}/bad")
        status, headers, body = get(f"{url}/hello?x=1")
        missing = get(f"{url}/other")
        head = raw(url, b"HEAD /hello HTTP/1.1\r\n" + HOST + b"\r\n")
        length = b"Content-Length: 16000\r\n\r\n"  # its body is not read
        post = raw(url, b"POST /hello HTTP/1.1\r\n" + HOST + length)

    assert (status, body) == (200, b"hello\n")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert missing[::2] == (404, b"not found; try /bad, /hello\n")
    assert bad[::2] == (500, b"internal error: see the agent's log\n")
    assert "cannot serve /bad" in caplog.text
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head.endswith(b"\r\n\r\n")
    assert post.startswith(b"HTTP/1.1 405 ")


def test_garbage_is_survived(caplog):
    """Whatever a client sends, the next one is served, and no traceback is logged."""
    garbage = [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x00\xff" * 100 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000,
        b"GET /hello HTTP/9.9\r\n" + b"no colon\r\n:\r\n\r\n",
    ]
    with serving({"/hello": hello}) as url:
        for sent in garbage:
            with contextlib.suppress(OSError):
                raw(url, sent, shut=True)
            assert get(f"{url}/hello")[0] == 200, sent[:40]
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 1", "Content-Length: 1"],
        ["Content-Length: 1", "Content-Length: 0"],
        ["Content-Length: 0", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 0"],
        *(["Content-Length: " + length] for length in ("+4", "0_4", "-5", "4 4", "4,4", "٤", "")),
    ],
)
def test_a_length_that_others_may_read_otherwise_is_refused(lines):
    """A proxy may then take the end of a request for one of its own."""
    with serving({"/hello": hello}) as url:
        head = "\r\n".join(["POST /hello HTTP/1.1", "Host: localhost", *lines, "", ""])
        said = raw(url, head.encode(), b"12345")

    assert said.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("line", "body"), [("X: " + "x" * 20_000, ""), ("Content-Length: 20000", "x" * 20_000)]
)
def test_what_is_too_large_is_refused(line, body):
    """Though it is whole: headers and bodies take memory."""
    with serving({"/hello": hello}) as url:
        said = raw(url, f"GET /hello HTTP/1.1\r\nHost: localhost\r\n{line}\r\n\r\n{body}".encode())

    assert said.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("pause_s", [0.05, 60.0])
def test_a_slow_client_is_cut_off(monkeypatch, pause_s):
    """Whether it sends a byte now and then or nothing more, a connection ends in time."""
    monkeypatch.setattr(http_server, "CONNECTION_S", 2.0)
    monkeypatch.setattr(http_server, "BEAT_S", 0.1)
    with serving({"/hello": hello}) as url, contextlib.closing(socket.socket()) as conn:
        conn.connect(("127.0.0.1", port_of(url)))
        conn.settimeout(pause_s)
        received, sent = None, 0
        while received is None and sent < 400:
            with contextlib.suppress(TimeoutError):
                conn.sendall(b"GET /hello HTTP/1.1\r\nX: "[sent : sent + 1] or b"x")
                sent += 1
                received = conn.recv(65536)
    assert received is None or not received.startswith(b"HTTP/1.1 200")
    assert sent < 400


ATTACKED = """
import sys
from amp_nova.http_server import HttpServer

def application(request, start):
    start("401 Unauthorized", [])
    return [b""]

server = HttpServer(("127.0.0.1", 0), application, body_max=int(sys.argv[1]))
print(server.bind_addr[1], flush=True)
server.run(lambda: True)
"""
"""The server of both services, in a process of its own, which shows what it takes."""


@pytest.mark.parametrize("body_max", [16384, BODY_BYTES_MAX], ids=["agent", "vendordata"])
def test_nothing_that_strangers_send_takes_much_memory(body_max):
    """Bodies and headers of any size, through more connections than it serves at a time."""
    heads = [
        b"GET / HTTP/1.1\r\nHost: x\r\nX: ",
        b"GET /",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 999,
    ]
    lengths = [body_max, 1 << 40]
    heads += [b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % n for n in lengths]
    heads += [b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFF\r\n"]
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", ATTACKED, str(body_max)]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        port = int(process.stdout.readline())
        for head in heads * 8:
            conn = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=0.1))
            with contextlib.suppress(OSError):
                conn.sendall(head)
                for _ in range(8):
                    conn.sendall(b"x" * (1 << 20))
        answer = get(f"http://127.0.0.1:{port}/")[0]
        most_kib = taken_kib(process.pid)

    assert answer == 401
    assert most_kib < 64 * 1024


def taken_kib(pid):
    """The most memory that a process has had so far (``VmHWM``, proc_pid_status(5))."""
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1])


def test_a_client_that_does_not_read_holds_nobody_up():
    """Sixteen that asked for a large page and wait; the next one is answered."""
    large = Page(b"x" * 50_000_000)
    clients = []
    with serving({"/large": lambda: large, "/hello": hello}) as url:
        for _ in range(http_server.CONNECTIONS_MAX):
            conn = socket.create_connection(("127.0.0.1", port_of(url)), timeout=30)
            conn.sendall(b"GET /large HTTP/1.1\r\n" + HOST + b"\r\n")
            clients.append(conn)
        status = get(f"{url}/hello")[0]
    for conn in clients:
        conn.close()

    assert status == 200


def test_compression_is_negotiated():
    """As Prometheus and browsers ask for it."""
    exporter = Exporter(detail="vcpu")
    exporter.update(reports.cycle(instance(booked())))
    with serving(exporter.routes) as url:
        page = get(f"{url}/")
        plain = get(f"{url}/metrics")
        zipped = get(f"{url}/metrics", **{"Accept-Encoding": "deflate, gzip;q=0.5"})
        unwanted = get(f"{url}/metrics", **{"Accept-Encoding": "identity, gzip;\tq=0.0"})

    assert page[1]["Content-Type"] == "text/html; charset=utf-8"
    assert page[1]["Content-Security-Policy"] == web_server.POLICY
    assert page[2].startswith(b"<!doctype html>")
    assert plain[1]["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"process_resident_memory_bytes" in plain[2]
    assert b"amp_vcpu_delivered_ratio{" in plain[2]
    assert plain[2] == gzip.decompress(zipped[2])
    assert zipped[1]["Content-Encoding"] == "gzip"
    assert plain[1]["Content-Encoding"] is None
    assert unwanted[1]["Content-Encoding"] is None


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


def settings_of(folder):
    return {"cert_file": str(folder / "cert.pem"), "key_file": str(folder / "key.pem")}


def trusting(folder):
    return ssl.create_default_context(cafile=str(folder / "cert.pem"))


def test_tls(certificate):
    """Plain HTTP is not answered, and a client that does not know the authority refuses."""
    with serving({"/hello": hello}, **settings_of(certificate)) as url:
        assert url.startswith("https://")
        assert get(f"{url}/hello", trusting(certificate))[0] == 200
        with pytest.raises(OSError, match=r"(?i)certificate.verify.failed"):
            get(f"{url}/hello", ssl.create_default_context())
        assert raw(url, b"GET /hello HTTP/1.1\r\n" + HOST + b"\r\n") == b""


def test_only_clients_with_a_certificate_are_served(certificate):
    """With ``client_ca_file``."""
    files = settings_of(certificate)
    known = trusting(certificate)
    known.load_cert_chain(files["cert_file"], files["key_file"])
    with serving({"/hello": hello}, client_ca_file=files["cert_file"], **files) as url:
        assert get(f"{url}/hello", known)[0] == 200
        with pytest.raises(OSError, match=r"certificate required|reset|EOF|closed"):
            get(f"{url}/hello", trusting(certificate))


def test_clients_that_do_not_finish_the_handshake_hold_nobody_up(certificate):
    """Not even the thread that accepts."""
    with serving({"/hello": hello}, **settings_of(certificate)) as url, contextlib.ExitStack() as s:
        for _ in range(3 * http_server.CONNECTIONS_MAX):
            conn = s.enter_context(socket.create_connection(("127.0.0.1", port_of(url)), 30))
            conn.sendall(b"\x16\x03\x01")  # a TLS record, and then nothing
        began_s = time.monotonic()
        assert get(f"{url}/hello", trusting(certificate))[0] == 200
        assert time.monotonic() - began_s < http_server.CONNECTION_S - http_server.BEAT_S


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path, certificate, monkeypatch):
    """A broken one leaves the one before in use."""
    monkeypatch.setattr(web_server, "RENEWAL_S", 0.0)
    monkeypatch.setattr(http_server, "BEAT_S", 0.05)
    make_certificate(tmp_path)
    with serving({"/hello": hello}, **settings_of(tmp_path)) as url:
        before = trusting(tmp_path)
        (tmp_path / "cert.pem").write_text("half a certif")
        time.sleep(0.3)
        assert get(f"{url}/hello", before)[0] == 200
        for name in ("cert.pem", "key.pem"):
            (tmp_path / name).write_bytes((certificate / name).read_bytes())
        deadline_s, status = time.monotonic() + 30, 0
        while status != 200 and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                status = get(f"{url}/hello", trusting(certificate))[0]
        assert status == 200


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"key_file": None}, "cert_file and key_file have to be set together"),
        ({"cert_file": "/no/such.pem"}, "No such file or directory"),
        ({"client_ca_file": "/dev/null"}, "client_ca_file = /dev/null cannot be used: "),
        ({"key_file": "/etc/passwd"}, "/etc/passwd holds credentials and is open to others"),
    ],
)
def test_a_wrong_certificate_is_one_sentence(certificate, changed, said):
    """It names the options, what is wrong, and the remedy."""
    with pytest.raises(ConfigInvalid) as caught:
        WebServer({}, WebSettings(**{**settings_of(certificate), **changed}))

    assert str(caught.value).startswith("[exporter] cert_file = ")
    assert said in str(caught.value)
    assert "remove all three to serve without TLS" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_address_that_cannot_be_bound_is_one_sentence():
    """It names the address, the reason and the remedy."""
    with pytest.raises(ConfigInvalid, match=r"cannot serve metrics on 192\.0\.2\.1:0"):
        WebServer({}, WebSettings("192.0.2.1")).bind()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ConfigInvalid) as caught:
            WebServer({}, WebSettings("127.0.0.1", port)).bind()

    assert str(caught.value) == (
        f"cannot serve metrics on 127.0.0.1:{port} (Address already in use): set another "
        "[exporter] address or port"
    )


def test_only_known_host_names_are_served():
    """A web site whose name resolves to this host reads nothing (DNS rebinding)."""
    own = ["127.0.0.1:9178", "[::1]:9178", "192.0.2.7", "localhost", "LOCALHOST.:80"]
    own += [socket.gethostname(), "compute-7.example.org:9178"]
    foreign = ["evil.example.net:9178", "127.0.0.1.evil.example.net", "localhost.evil.example.net"]
    foreign += ["localhost@evil.example.net", "[::1"]
    with serving({"/hello": hello}, allowed_hosts=["Compute-7.example.org"]) as url:
        served = {host: get(f"{url}/hello", Host=host)[::2] for host in own}
        refused = {host: get(f"{url}/hello", Host=host)[::2] for host in foreign}
        checked = []
        for host in (b"", b"Host:\r\n"):
            with socket.create_connection(("127.0.0.1", urlsplit(url).port)) as balancer:
                balancer.sendall(b"GET /hello HTTP/1.0\r\n" + host + b"\r\n")
                checked.append(balancer.makefile("rb").read())

    assert served == dict.fromkeys(own, (200, b"hello\n"))
    assert all(c.endswith(b"\r\n\r\nhello\n") for c in checked), "balancers send no host name"
    remedy = "is not allowed: add it to [exporter] allowed_hosts, or use the IP address\n"
    assert refused == {h: (421, f"host name {h!r} {remedy}".encode()) for h in foreign}
