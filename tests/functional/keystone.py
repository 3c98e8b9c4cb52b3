# SPDX-License-Identifier: Apache-2.0
"""A FAKE Keystone over loopback HTTP: it gives tokens for passwords, and validates them."""

import json
import threading
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from keystoneauth1 import fixture

from tests.support.tenant import reply


class FakeKeystone:
    """``users``: the id of the project and the roles of every user; the password is ``secret``."""

    def __init__(self, users, nova="http://127.0.0.1:9/v2.1"):
        self.users, self.nova = users, nova
        self.tokens, self.validated, self.url = {}, [], "http://127.0.0.1:9"

    def token(self, user):
        """A new token of a user, as keystonemiddleware and services get it."""
        project, roles = self.users[user]
        made = fixture.V3Token(user_name=user, project_id=project)
        for role in roles:
            made.add_role(name=role)
        for kind, url in (("compute", self.nova), ("identity", f"{self.url}/v3")):
            made.add_service(kind).add_standard_endpoints(internal=url, region="RegionOne")
        token = uuid.uuid4().hex
        self.tokens[token] = made
        return token

    @contextmanager
    def serving(self):
        """Sets ``url``, while it serves."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if not self.path.startswith("/v3/auth/tokens"):
                    versions = fixture.DiscoveryList(f"{fake.url}/", v2=False)
                    version = {"version": versions.versions[0]}
                    found = version if self.path.startswith("/v3") else versions
                    reply(self, json.dumps(found).encode(), Content_Type="application/json")
                    return
                token = self.headers["X-Subject-Token"]
                fake.validated.append(token)
                known = fake.tokens.get(token)
                body = json.dumps(known or {"error": {"code": 404}}).encode()
                reply(self, body, 200 if known else 404, Content_Type="application/json")

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                user = body["auth"]["identity"]["password"]["user"]
                if user["name"] not in fake.users or user["password"] != "secret":
                    reply(self, b'{"error": {"code": 401}}', 401)
                    return
                token = fake.token(user["name"])
                body = json.dumps(fake.tokens[token]).encode()
                reply(self, body, 201, X_Subject_Token=token, Content_Type="application/json")

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
