# SPDX-License-Identifier: Apache-2.0
"""Shared by tests of amp-nova-vendordata: series, fakes of Prometheus and Nova, forged requests."""

import hashlib
import io
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

SERVER = "5a0e4ab6-6f0a-4a1c-9b0e-0f2f4f1e9d3c"
PROJECT = "a7b1c0ffee0d4e5f8a9b0c1d2e3f4a5b"
OTHER_SERVER = "11111111-2222-4333-8444-555555555555"
OTHER_PROJECT = "0123456789abcdef0123456789abcdef"
INTERVAL_S = 10.0
FORGED = 10_000
"""Requests."""
TOKENS = {
    "nova": {"PROJECT_ID": "service-project", "ROLES": "admin,service"},
    "owner": {"PROJECT_ID": PROJECT, "ROLES": "member,reader"},
    "other": {"PROJECT_ID": OTHER_PROJECT, "ROLES": "member,reader"},
    "admin": {"PROJECT_ID": OTHER_PROJECT, "ROLES": "admin,member,reader"},
    "domain": {"DOMAIN_ID": "default", "ROLES": "admin"},
}
OWNERS = {SERVER: PROJECT, OTHER_SERVER: OTHER_PROJECT}


def series(name, values, host="compute-1:9178", until_s=None, every_s=INTERVAL_S, **labels):
    """Samples of a metric of the server, the last one ``until_s`` (by default: now)."""
    until_s = time.time() if until_s is None else until_s
    first_s = until_s - every_s * (len(values) - 1)
    metric = {"__name__": f"amp_{name}", "instance": host, "job": "amp-nova", **labels}
    found = [[first_s + every_s * i, str(v)] for i, v in enumerate(values)]
    return {"metric": metric, "values": found}


def coefficient(value, core_type, host="compute-1:9178"):
    """A coefficient of a host, as an instant query returns it."""
    name = "amp_core_type_coefficient_ratio"
    metric = {"__name__": name, "instance": host, "core_type": core_type}
    return {"metric": metric, "value": [time.time(), str(value)]}


def half(host="compute-1:9178", core_type="fast", speed=2.0, steps=30, until_s=None, start=100.0):
    """Half a reference core, all of which was delivered in each step."""
    at = {"host": host, "until_s": until_s}
    grown = [start + 0.5 * INTERVAL_S * i for i in range(steps + 1)]
    return [
        series("instance_booked_refcores", [0.5] * (steps + 1), **at),
        series("instance_delivered_refcores", [0.499] * (steps + 1), **at),
        series("instance_reference_cpu_seconds_total", grown, **at),
        series("instance_cpu_seconds_total", [g / speed for g in grown], core_type=core_type, **at),
        series("instance_throttled_seconds_total", [g * (2 - 1 / speed) for g in grown], **at),
    ]


def shortfall(cause, per_step, steps=30, host="compute-1:9178"):
    """Reference-core seconds that were not delivered, by one cause."""
    name = "instance_shortfall_refcore_seconds_total"
    return series(name, [per_step * i for i in range(steps + 1)], host, cause=cause)


class FakePrometheus:
    """Answers both queries over HTTP; ``respond`` replaces the answer. A fake, not Prometheus."""

    def __init__(self):
        self.samples, self.coefficients = half(), [coefficient(2.0, "fast")]
        self.respond = None
        self.asked = []

    def body(self, expression):
        """The series of the project and server that the expression names, if they are this one."""
        mine = f'resource="{SERVER}",project="{PROJECT}"' in expression
        ranged = expression.endswith("s]")
        result = (self.samples if ranged else self.coefficients) if mine else []
        kind = "matrix" if ranged else "vector"
        return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}})

    @contextmanager
    def serving(self):
        """Its address, while it serves."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                expression = parse_qs(urlsplit(self.path).query)["query"][0]
                fake.asked.append(expression)
                if fake.respond is not None:
                    fake.respond(self)
                    return
                reply(self, fake.body(expression).encode())

            def log_message(self, *_):
                pass

        with served(Handler) as url:
            yield url


@contextmanager
def served(handler, tls=None):
    """The address at which a handler answers; ``tls``: a server's context."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def reply(handler, body, status=200, **headers):
    """A whole HTTP response."""
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def settings(url="http://127.0.0.1:9", **changed):
    """The options ``[vendordata]``."""
    values = {"prometheus_url": url, "role": "service"}
    return SimpleNamespace(**{**values, **changed})


def conf(**changed):
    """The options that the application reads, with the filter's."""
    keystone = SimpleNamespace(interface="internal", region_name=None, cafile=None, insecure=False)
    return SimpleNamespace(vendordata=settings(**changed), keystone_authtoken=keystone)


def call(application, method="POST", path="/v1/vendordata", body=b"", **environ):
    """Status and decoded answer of a request to a WSGI application."""
    started = []
    request = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.url_scheme": "http",
        "wsgi.errors": io.StringIO(),
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        **environ,
    }
    answer = b"".join(application(request, lambda status, headers: started.append(status)))
    return int(started[0].split()[0]), json.loads(answer)


def nova_request(server=SERVER, project=PROJECT, **more):
    """What Nova sends for a server."""
    sent = {
        "project-id": project,
        "instance-id": server,
        "image-id": "",
        "user-data": None,
        "hostname": "web",
        "metadata": {},
        "boot-roles": "member,reader",
        **more,
    }
    return json.dumps(sent).encode()


@contextmanager
def nova(answer=None, tls=None):
    """A fake of Nova's API: it shows a server to the owner's project, and all to ``admin``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            if answer is not None:
                reply(self, answer[1], answer[0])
                return
            server, token = self.path.rpartition("/")[2], self.headers["X-Auth-Token"]
            owner = OWNERS.get(server)
            known = TOKENS.get(token, {})  # tokens of the real filter have other names
            admin = "admin" in known.get("ROLES", "") or token == "nova"
            shown = owner and (admin or known.get("PROJECT_ID") == owner)
            host_id = hashlib.sha224(f"{owner}compute-1".encode()).hexdigest()
            about = {"id": server, "tenant_id": owner, "hostId": host_id}
            body = json.dumps({"server": about}).encode()
            reply(self, body if shown else b'{"itemNotFound": {}}', 200 if shown else 404)

        def log_message(self, *_):
            pass

    with served(Handler, tls) as url:
        yield f"{url}/v2.1"


def forged(random_):
    """A request that must give nothing about ``SERVER``: at least one thing in it is wrong."""
    tenant = random_.choice(["other", "admin", "domain", "stolen", "", None])
    injected = ['"', '"}', f'",project="{PROJECT}', "\n", "\x00", "' or 1", "%22", "é", "}[5m]"]
    server = random_.choice([SERVER, SERVER.upper(), SERVER.replace("-", ""), f"{{{SERVER}}}"])
    server = random_.choice([server, SERVER + random_.choice(injected), f"urn:uuid:{SERVER}"])
    more = PROJECT + random_.choice(injected)
    project = random_.choice([PROJECT, more, ".*", None, 7, [PROJECT]])
    environ = {} if tenant is None else {"HTTP_X_AUTH_TOKEN": tenant}
    # What the filter sets, claimed by the client.
    claims = {
        "HTTP_X_ROLES": "service",
        "HTTP_X_PROJECT_ID": PROJECT,
        "HTTP_X_IDENTITY_STATUS": "Confirmed",
        "HTTP_X_SERVICE_ROLES": "service",
        "HTTP_X_SERVICE_TOKEN": "nova",
    }
    environ |= {k: v for k, v in claims.items() if random_.random() < 0.5}
    kind = random_.randrange(4)
    if kind == 0:  # vouches for a server without the role
        return {"body": nova_request(server, project), **environ}
    if kind == 1:  # another's server, with a token of its own
        return {"method": "GET", "path": f"/v1/servers/{server}", **environ}
    if kind == 2:  # Nova names another project or no server
        wrong = random_.choice([(SERVER, OTHER_PROJECT), (SERVER, more), (server, ".*")])
        return {"body": nova_request(*wrong), **environ, "HTTP_X_AUTH_TOKEN": "nova"}
    raw = random_.choice(  # nonsense
        [
            random_.randbytes(random_.randrange(300)),
            b"[" * random_.randrange(5000),
            b'{"instance-id": ' * random_.randrange(2000),
            nova_request(SERVER, PROJECT)[: random_.randrange(60)],
            json.dumps({"instance-id": {"": SERVER}, "project-id": PROJECT}).encode(),
        ]
    )
    return {"body": raw, **environ, "HTTP_X_AUTH_TOKEN": random_.choice(["nova", "other"])}
