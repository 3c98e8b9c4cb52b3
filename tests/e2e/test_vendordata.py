# SPDX-License-Identifier: Apache-2.0
"""What a guest and its owner read about it, beside what its host exports, and after a migration.

The guests here have no network: Nova's metadata API is asked as Neutron's proxy does for a guest.
"""

import contextlib
import hashlib
import hmac
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.conftest import metric
from tests.e2e.test_bookings import HALF, REFCORES
from tools.cloud.configuration import KEYSTONE
from tools.cloud.layout import ADDRESS, BIN, ETC, FAST, NOVA_BIN, PASSWORD, PORTS, REGION, SLOW
from tools.cloud.processes import start, stop, until

pytestmark = pytest.mark.timeout(900)
SECRET = "shared with Neutron's proxy"
FOLDER = ETC / "vendordata"
SERVICE, METADATA = max(PORTS.values()) + 31, max(PORTS.values()) + 32
"""Ports, beyond those of the agents."""
OWNER, STRANGER = "tenant", "stranger"
FRESH_S = 15.0
ARRIVED_S = 20.0
READS = 200
"""Reads of a guest that asks for its metadata all the time."""
CREDENTIALS = f"""
auth_type = password
auth_url = {KEYSTONE}
password = {PASSWORD}
project_name = service
user_domain_name = Default
project_domain_name = Default
region_name = {REGION}
"""
OWN = f"""
[vendordata]
port = {SERVICE}
prometheus_url = http://{ADDRESS}:{PORTS["prometheus"]}
[keystone_authtoken]
www_authenticate_uri = {KEYSTONE}
interface = public
username = amp-nova{CREDENTIALS}
"""
NOVA = f"""
[api]
vendordata_providers = DynamicJSON
vendordata_dynamic_targets = amp@http://{ADDRESS}:{SERVICE}/v1/vendordata
[vendordata_dynamic_auth]
username = nova{CREDENTIALS}
[neutron]
service_metadata_proxy = true
metadata_proxy_shared_secret = {SECRET}
"""


def get(port, path, **headers):
    """The decoded answer of a request; ``urllib.error.HTTPError`` if it is refused."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://{ADDRESS}:{port}{path}", headers=names)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


def answers(port):
    """Whether anything answers there."""
    try:
        get(port, "/")
    except (urllib.error.HTTPError, ValueError):  # refused, or not JSON
        return True
    except OSError:
        return False
    return True


@pytest.fixture(scope="module", autouse=True)
def services():
    """The service and Nova's metadata API, in front of the cloud's Keystone and Prometheus."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "amp-nova.conf").write_text(OWN)
    (FOLDER / "amp-nova.conf").chmod(0o600)
    # The first one is the pipeline; a later one overrides those before it.
    (FOLDER / "nova.conf").write_text((ETC / "nova/nova.conf").read_text())
    (FOLDER / "nova.conf.d").mkdir(exist_ok=True)
    (FOLDER / "nova.conf.d/vendordata.conf").write_text(NOVA)
    (FOLDER / "api-paste.ini").write_text((ETC / "nova/api-paste.ini").read_text())
    program = [BIN / "amp-nova-vendordata", "--config-file", FOLDER / "amp-nova.conf"]
    start("amp-nova-vendordata", program)
    metadata = [
        BIN / "uwsgi",
        f"--http-socket={ADDRESS}:{METADATA}",
        "--module=nova.wsgi.metadata:application",
        f"--virtualenv={NOVA_BIN.parent}",
        "--threads=4",
        "--master",
        "--need-app",
        "--die-on-term",
        "--lazy-apps",
        "--enable-threads",
    ]
    files = "api-paste.ini;nova.conf;nova.conf.d/vendordata.conf"
    start("nova-metadata", metadata, OS_NOVA_CONFIG_DIR=FOLDER, OS_NOVA_CONFIG_FILES=files)
    try:
        until(lambda: answers(SERVICE), "amp-nova-vendordata", 60)
        until(lambda: answers(METADATA), "Nova's metadata API", 60)
        yield
    finally:
        stop(["nova-metadata", "amp-nova-vendordata"])


@pytest.fixture
def users(cloud):
    """A member of the servers' project, and a member of another one."""
    identity = cloud.sdk.identity
    member = identity.find_role("member")
    own, other = identity.find_project("admin"), identity.create_project(name=STRANGER)
    made = []
    for name, project in ((OWNER, own), (STRANGER, other)):
        user = identity.create_user(name=name, password=PASSWORD, domain_id="default")
        identity.assign_project_role_to_user(project, user, member)
        made.append(user)
    yield
    for user in made:
        identity.delete_user(user)
    identity.delete_project(other)


def metadata(server):
    """``curl http://169.254.169.254/openstack/latest/vendor_data2.json`` inside of the server."""
    project = server.show()["tenant_id"]
    signature = hmac.new(SECRET.encode(), server.id.encode(), hashlib.sha256).hexdigest()
    return get(
        METADATA,
        "/openstack/latest/vendor_data2.json",
        X_Instance_ID=server.id,
        X_Tenant_ID=project,
        X_Instance_ID_Signature=signature,
        X_Forwarded_For="192.0.2.1",
    )["amp"]


def shown(server, user, project):
    """``openstack amp server show`` of a user without administrator's rights."""
    account = {
        "OS_AUTH_URL": KEYSTONE,
        "OS_USERNAME": user,
        "OS_PASSWORD": PASSWORD,
        "OS_PROJECT_NAME": project,
        "OS_USER_DOMAIN_NAME": "Default",
        "OS_PROJECT_DOMAIN_NAME": "Default",
        "OS_REGION_NAME": REGION,
        "OS_IDENTITY_API_VERSION": "3",
    }
    url = f"http://{ADDRESS}:{SERVICE}"
    command = [BIN / "openstack", "amp", "server", "show", server.id, "--url", url, "-f", "json"]
    return subprocess.run(
        command, env={**os.environ, **account}, capture_output=True, text=True, check=False
    )


def test_a_guest_reads_what_its_host_exports_before_and_after_a_migration(
    cloud, image, speeds, figure
):
    """Within 1 %, at most 15 s old; 20 s after the arrival, all of it is the new host's."""
    server = cloud.boot(image, cloud.flavor("half", HALF), FAST)
    server.process()
    time.sleep(60)  # the mean is over more than the start
    throttled = []
    for host in (FAST, SLOW):
        if host != FAST:
            move = {"host": host.name, "block_migration": "auto"}
            server.act("os-migrateLive", move, timeout_s=280)
            time.sleep(ARRIVED_S)
        told = metadata(server)
        exported = metric(host, "amp_instance_delivered_refcores", resource=server.id)
        figure(f"vendor_data2.json on {host.name}: {json.dumps(told)}; exported: {exported}")
        assert server.host == host
        assert told["age_s"] <= FRESH_S
        assert told["booked_refcores"] == REFCORES
        assert (told["current_core_type"], told["coefficient"]) == (
            host.name,
            pytest.approx(speeds[host.name], rel=1e-4),
        )
        assert told["delivered_refcores"] == pytest.approx(REFCORES, rel=0.03)
        throttled.append(1 - REFCORES / told["coefficient"])
        # The mean is over one of the hosts; and waiting for others is not throttled for the kernel.
        least, most = 0.8 * min(throttled) - 0.1, max(throttled) + 0.1
        assert least <= told["throttled_vcpus"] <= most
        seconds = metric(host, "amp_instance_reference_cpu_seconds_total", resource=server.id)
        time.sleep(30)
        grown = (
            metric(host, "amp_instance_reference_cpu_seconds_total", resource=server.id) - seconds
        )
        assert metadata(server)["last_delivered_refcores"] == pytest.approx(grown / 30, rel=0.05)


def test_the_mean_is_what_the_host_counted(cloud, image, figure):
    """Within 1 %, from the host's counter at the first and the last sample of the window."""
    server = cloud.boot(image, cloud.flavor("half", HALF), FAST)
    server.process()
    counted = []
    end = time.monotonic() + 75
    while time.monotonic() < end:
        name = "amp_instance_reference_cpu_seconds_total"
        counted.append((time.time(), metric(FAST, name, resource=server.id) or 0.0))
        time.sleep(1)
    told = metadata(server)
    last_s = counted[-1][0] - told["age_s"]
    first_s = last_s - told["window_s"]
    near = [min(counted, key=lambda c, at=at: abs(c[0] - at)) for at in (first_s, last_s)]
    mean = (near[1][1] - near[0][1]) / (near[1][0] - near[0][0])
    figure(
        f"mean over {told['window_s']:.0f} s: told {told['delivered_refcores']}, host {mean:.4f}"
    )
    assert told["delivered_refcores"] == pytest.approx(mean, rel=0.01)


def test_the_owner_is_told_the_same_and_a_stranger_nothing(cloud, image, users, figure):
    """Without administrator's rights, on the command line of OpenStackClient."""
    server = cloud.boot(image, cloud.flavor("half", HALF), SLOW)
    server.process()
    until(lambda: "current_core_type" in metadata(server), "all figures", 60)

    own, other = shown(server, OWNER, "admin"), shown(server, STRANGER, STRANGER)

    assert own.returncode == 0, own.stderr
    told = json.loads(own.stdout)
    figure(f"openstack amp server show as {OWNER}: {own.stdout}")
    assert told["booked_refcores"] == REFCORES
    assert told["current_core_type"] == SLOW.name
    assert told["claimed_refcores"] == {}
    assert other.returncode == 2
    assert "there is no server" in other.stderr
    assert "refcores" not in other.stdout


def test_a_guest_that_reads_all_the_time_gets_answers_in_time(cloud, image, figure):
    """From four connections at once; Prometheus is asked once in a while."""
    server = cloud.boot(image, cloud.flavor("half", HALF), FAST)
    server.process()
    until(lambda: "current_core_type" in metadata(server), "all figures", 60)

    def timed(_):
        before_s = time.monotonic()
        told = metadata(server)
        return time.monotonic() - before_s, told

    with ThreadPoolExecutor(4) as readers:
        found = [*readers.map(timed, range(READS))]

    took_ms = sorted(1000 * seconds for seconds, _ in found)
    median_ms, most_ms = took_ms[READS // 2], took_ms[-1]
    figure(f"{READS} reads through Nova: median {median_ms:.0f} ms, most {most_ms:.0f} ms")
    assert all(told["age_s"] <= FRESH_S for _, told in found)


def test_an_address_in_the_catalogue_is_found(cloud, image, users):
    """As the documentation registers it."""
    identity = cloud.sdk.identity
    service = identity.create_service(name="amp-nova-vendordata", type="amp-capacity")
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(identity.delete_service, service)
        url = f"http://{ADDRESS}:{SERVICE}"
        identity.create_endpoint(
            service_id=service.id, interface="public", url=url, region_id=REGION
        )
        server = cloud.boot(image, cloud.flavor("half", HALF), SLOW)
        server.process()
        until(lambda: "current_core_type" in metadata(server), "all figures", 60)
        session = cloud.sdk.session
        session.invalidate()  # the catalogue comes with a token
        found = session.get_endpoint(service_type="amp-capacity", interface="public")
        token = session.get_token()
        assert found == url
        assert get(SERVICE, f"/v1/servers/{server.id}", X_Auth_Token=token)["age_s"] <= FRESH_S
