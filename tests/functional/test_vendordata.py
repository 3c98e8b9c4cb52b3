# SPDX-License-Identifier: Apache-2.0
"""The service with Keystone's real filter, asked by Nova's own code.

``amp-nova-vendordata`` runs as a program of its own; Keystone and Prometheus are fakes.
"""

import contextlib
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import fixtures
import nova.conf
import pytest
import requests
from keystoneauth1 import loading
from keystonemiddleware.fixture import AuthTokenFixture
from nova import service_auth
from nova.api.metadata import vendordata_dynamic
from nova.tests.fixtures.nova import OSMetadataServer

from amp_nova.tenant.server import configured, main
from tests.functional.cloud import CloudTestCase
from tests.functional.keystone import FakeKeystone
from tests.support import tenant
from tests.support.tenant import (
    FORGED,
    OTHER_PROJECT,
    OTHER_SERVER,
    PROJECT,
    SERVER,
    FakePrometheus,
    call,
    forged,
    nova_request,
)

CONF = nova.conf.CONF
AUTH = "vendordata_dynamic_auth"
PASSWORD = loading.get_auth_plugin_conf_options("password")
ROOT = Path(__file__).parents[2]
CODE = """import sys
from amp_nova.tenant import prometheus, server
prometheus.ANSWER_S = 3.0
sys.exit(server.main(sys.argv[1:]))"""
"""The program, on a machine that is busy with other tests and slower than 200 ms."""
USERS = {
    "nova": ("service-project", ["admin", "service"]),
    "owner": (PROJECT, ["member", "reader"]),
    "other": (OTHER_PROJECT, ["member", "reader"]),
}


def configuration(path, keystone, prometheus, **more):
    """A configuration file with both sections; returns its path as text."""
    own = "".join(f"{key} = {value}\n" for key, value in more.items())
    path.write_text(f"""
[vendordata]
prometheus_url = {prometheus}
{own}
[keystone_authtoken]
www_authenticate_uri = {keystone}
auth_url = {keystone}/v3
auth_type = password
username = nova
password = secret
project_name = service
user_domain_name = Default
project_domain_name = Default
""")
    path.chmod(0o600)
    return str(path)


@contextlib.contextmanager
def served(folder, keystone, prometheus):
    """The address of ``amp-nova-vendordata``, once it serves."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = configuration(folder / "conf", keystone, prometheus, port=port)
    command = [sys.executable, "-W", "ignore", "-c", CODE, "--config-file", file]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 60
            while True:
                with contextlib.suppress(requests.ConnectionError):
                    assert requests.get(url, timeout=10).status_code == 401
                    assert requests.get(f"{url}/healthcheck", timeout=10).ok
                    break
                assert process.poll() is None, "it ended"
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()


def nova_targets(test, url, keystone):
    """Nova's options for the service, as the documentation has them."""
    CONF.register_opts(PASSWORD, group=AUTH)
    credentials = {
        "auth_type": "password",
        "auth_url": f"{keystone.url}/v3",
        "username": "nova",
        "password": "secret",
        "project_name": "service",
        "user_domain_name": "Default",
        "project_domain_name": "Default",
    }
    test.flags(group=AUTH, **credentials)
    targets = [f"amp@{url}/v1/vendordata"]
    test.flags(
        group="api", vendordata_providers=["DynamicJSON"], vendordata_dynamic_targets=targets
    )
    forget_session()
    test.addCleanup(forget_session)


def forget_session():
    """Nova logs in again; up to Nova 31, its client of the service keeps a session of its own."""
    service_auth.reset_globals()
    vendordata_dynamic._SESSION = vendordata_dynamic._ADMIN_AUTH = None


class MetadataTest(CloudTestCase):
    """What a guest reads at 169.254.169.254, through Nova's metadata API."""

    HOSTS: ClassVar = {"host1": None}

    def setUp(self):
        # One of them is required, but not by other tests; last, when the options are reset.
        self.addCleanup(CONF.unregister_opts, PASSWORD, group=AUTH)
        super().setUp()
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.prometheus = FakePrometheus()
        self.keystone = stack.enter_context(FakeKeystone(USERS).serving())
        source = stack.enter_context(self.prometheus.serving())
        self.url = stack.enter_context(served(folder, self.keystone.url, source))
        nova_targets(self, self.url, self.keystone)

    def vendor_data2(self, server):
        """``curl http://169.254.169.254/openstack/latest/vendor_data2.json`` in the guest."""
        address = lambda *_: {"instance_uuid": server}  # noqa: E731
        name = "nova.network.neutron.API.get_fixed_ip_by_address"
        self.useFixture(fixtures.MonkeyPatch(name, address))
        url = self.useFixture(OSMetadataServer()).md_url
        reply = requests.get(f"{url}openstack/latest/vendor_data2.json", timeout=60)
        assert reply.status_code == 200
        return reply.json()

    def test_a_guest_reads_what_it_books_and_gets(self):
        """Below the target's name; nothing in it names the host."""
        server = self.boot(self.flavor())
        known = f'resource="{server["id"]}",project="{server["tenant_id"]}"'
        whole = self.prometheus.body
        self.prometheus.body = lambda expression: whole(
            expression.replace(known, f'resource="{SERVER}",project="{PROJECT}"')
        )

        told = self.vendor_data2(server["id"])["amp"]

        assert (told["booked_refcores"], told["delivered_refcores"]) == (0.5, 0.5)
        assert (told["current_core_type"], told["coefficient"]) == ("fast", 2.0)
        assert told["source"] == "prometheus"
        assert 0 <= told["age_s"] < 60
        assert "compute-1" not in str(told)
        assert "host1" not in str(told)

    def test_a_guest_that_nothing_is_known_of_reads_an_empty_object(self):
        """And so does every guest while Prometheus is down."""
        server = self.boot(self.flavor())

        assert self.vendor_data2(server["id"]) == {"amp": {}}

    def test_novas_client_is_validated_by_keystone(self):
        """Nova's token is a service user's; with another user's, the guest gets nothing."""
        instance = SimpleNamespace(
            project_id=PROJECT,
            uuid=SERVER,
            image_ref="",
            user_data="QQ==" * 16000,
            hostname="web",
            metadata={"key": "value"},
            system_metadata={"boot_roles": "member"},
        )
        client = vendordata_dynamic.DynamicVendorData(instance)

        assert client.get()["amp"]["booked_refcores"] == 0.5
        assert len(self.keystone.validated) == 1  # and then remembered by the filter
        assert client.get()["amp"]["booked_refcores"] == 0.5
        assert len(self.keystone.validated) == 1

        self.flags(group=AUTH, username="other")
        forget_session()
        assert vendordata_dynamic.DynamicVendorData(instance).get() == {"amp": {}}


@pytest.fixture
def filtered(tmp_path, monkeypatch):
    """The application as it is deployed, and tokens without Keystone (keystonemiddleware's own)."""
    monkeypatch.setattr("amp_nova.tenant.prometheus.ANSWER_S", 3.0)
    prometheus, tokens = FakePrometheus(), AuthTokenFixture()
    with prometheus.serving() as source, tenant.nova() as nova_url, tokens:
        keystone = FakeKeystone(USERS, nova_url)
        for user in USERS:
            tokens.add_token(keystone.tokens[keystone.token(user)], user)
        file = configuration(tmp_path / "conf", "http://127.0.0.1:9", source)
        yield SimpleNamespace(application=configured([file])[1], prometheus=prometheus)


def test_the_real_filter_lets_nova_and_the_owner_through(filtered):
    """Roles and projects come from tokens; Nova's address from the catalogue in the token."""
    told = call(filtered.application, body=nova_request(), HTTP_X_AUTH_TOKEN="nova")
    path = f"/v1/servers/{SERVER}"
    owner = call(filtered.application, "GET", path, HTTP_X_AUTH_TOKEN="owner")

    assert (told[0], told[1]["booked_refcores"]) == (200, 0.5)
    assert (owner[0], owner[1]["booked_refcores"]) == (200, 0.5)
    assert call(filtered.application, "GET", path, HTTP_X_AUTH_TOKEN="other") == (404, {})
    other = f"/v1/servers/{OTHER_SERVER}"
    assert call(filtered.application, "GET", other, HTTP_X_AUTH_TOKEN="other") == (200, {})


def test_no_forged_request_passes_the_real_filter(filtered):
    """10,000 requests, some with what the filter itself sets: none gives a figure."""
    random_ = random.Random(73)
    statuses = set()
    for number in range(FORGED):
        request = forged(random_)
        status, told = call(filtered.application, **request)
        statuses.add(status)
        assert status != 500, f"request {number}: {request}"
        assert status == 401 or told == {}, f"request {number}: {request}"
        assert "refcores" not in str(told), f"request {number}: {request}"

    assert statuses == {200, 400, 401, 403, 404}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "[keystone_authtoken] cannot be used: auth_type is not set"),
        ("[keystone_authtoken]\nauth_type = magic", "[keystone_authtoken] cannot be used"),
        ("[keystone_authtoken]\nauth_type = password", "[keystone_authtoken] cannot be used"),
        (
            "[vendordata]\nprometheus_url = here",
            "[vendordata] prometheus_url = here is not allowed",
        ),
        ("[vendordata]\nrole =", "[vendordata] role =  is not allowed"),
        ("[vendordata]\naddress = 192.0.2.1", "192.0.2.1"),
    ],
)
def test_bad_configuration_is_one_sentence(tmp_path, capsys, text, said):
    """Exit status 2."""
    file = configuration(tmp_path / "conf", "http://127.0.0.1:9", "http://127.0.0.1:9")
    whole = Path(file).read_text() if "address" in text else ""
    Path(file).write_text(f"{whole}\n{text}\n")

    assert main(["--config-file", file]) == 2

    *logged, error = capsys.readouterr().err.splitlines()
    assert error.startswith("amp-nova-vendordata: ")
    assert said in error
    assert all(" WARNING " in line for line in logged)  # of other libraries


def test_the_wsgi_module_is_the_application(tmp_path, monkeypatch):
    """For uWSGI and mod_wsgi, from the default files."""
    file = configuration(tmp_path / "conf", "http://127.0.0.1:9", "http://127.0.0.1:9")
    monkeypatch.setattr("amp_nova.conf.defaults", lambda: ([file], []))

    from amp_nova.tenant.wsgi import application

    started = []
    request = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "wsgi.url_scheme": "http"}
    request |= {"SERVER_NAME": "x", "SERVER_PORT": "80"}
    assert application(request, lambda status, headers: started.append(status))
    assert started[0].startswith("401")
