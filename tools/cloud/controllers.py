# SPDX-License-Identifier: Apache-2.0
"""The control plane: broker, database, and the APIs and services that know no hypervisor."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import openstack

from tests.support import broker
from tools.cloud import configuration
from tools.cloud.configuration import DATABASES, KEYSTONE
from tools.cloud.layout import (
    ADDRESS,
    BIN,
    ETC,
    HOME,
    HOSTS,
    LOG,
    NEWEST,
    NOVA,
    NOVA_BIN,
    PASSWORD,
    PORTS,
    REGION,
    STATE,
)
from tools.cloud.processes import Failed, call, listens, running, start, step, stop, until

NODE = "minicloud@localhost"


def start_broker() -> None:
    """RabbitMQ, with a port mapper and a data folder of its own."""
    home = STATE / "rabbitmq"
    (home / "data").mkdir(parents=True)
    variables = broker.variables(home, LOG, NODE, PORTS)
    # Started here and in the foreground; the broker would start one that outlives it.
    start("epmd", ["epmd", "-port", PORTS["epmd"], "-address", ADDRESS], **variables)
    start("rabbitmq", [broker.PROGRAM], **variables)
    until(lambda: listens(PORTS["rabbitmq"]), "RabbitMQ")


DATA, SOCKET = STATE / "mariadb", STATE / "mariadb.sock"
KEPT = HOME / ("databases" if NOVA == NEWEST else f"databases-{NOVA}")
"""The databases of the first ``up``, filled, before any other service ran; and Keystone's keys."""
_TOGETHER = (DATA, ETC / "keystone/fernet", ETC / "keystone/credential")


def _made_from() -> str:
    """What the databases depend on: the packages, and what is written into them."""
    installed = (programs.parent / ".installed" for programs in (BIN, NOVA_BIN))
    files = (*installed, Path(__file__), Path(configuration.__file__))
    parts = [*(path.read_text() for path in files), repr(PORTS)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _start_mariadb() -> None:
    command = [
        "mariadbd",
        "--no-defaults",
        "--user=root",
        f"--datadir={DATA}",
        f"--socket={SOCKET}",
        f"--bind-address={ADDRESS}",
        f"--port={PORTS['database']}",
        "--max-connections=1000",
        "--innodb-flush-log-at-trx-commit=0",
        "--skip-log-bin",
        "--skip-name-resolve",
    ]
    start("mariadb", command)
    until(lambda: listens(PORTS["database"]), "MariaDB")


def start_database() -> None:
    """MariaDB with the databases that an earlier ``up`` kept, else with empty ones."""
    made_from = KEPT / "made-from"
    if made_from.exists() and made_from.read_text() == _made_from():
        for folder in _TOGETHER:
            shutil.copytree(KEPT / folder.name, folder)
        _start_mariadb()
        return
    shutil.rmtree(KEPT, ignore_errors=True)
    call(
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={DATA}",
        "--user=root",
        "--skip-test-db",
        "--auth-root-authentication-method=socket",
    )
    _start_mariadb()
    who = f"minicloud@'{ADDRESS}'"
    statements = [f"CREATE USER {who} IDENTIFIED BY '{PASSWORD}';"]
    for name in DATABASES:
        statements.append(f"CREATE DATABASE {name}; GRANT ALL ON {name}.* TO {who};")
    mariadb = ("mariadb", "--no-defaults", f"--socket={SOCKET}", "--user=root")
    call(*mariadb, text="\n".join(statements))


def _fill(program: str, conf: str, *commands: Sequence[str]) -> None:
    programs = NOVA_BIN if program == "nova-manage" else BIN
    for command in commands:
        call(programs / program, "--config-file", ETC / conf, *command)


def fill_keystone() -> None:
    """Tables, keys, and the administrator."""
    (ETC / "keystone/fernet").mkdir(mode=0o700)
    (ETC / "keystone/credential").mkdir(mode=0o700)
    owner = ("--keystone-user", "root", "--keystone-group", "root")
    urls = [f"--bootstrap-{who}-url={KEYSTONE}" for who in ("admin", "internal", "public")]
    _fill(
        "keystone-manage",
        "keystone/keystone.conf",
        ["db_sync"],
        ["fernet_setup", *owner],
        ["credential_setup", *owner],
        ["bootstrap", f"--bootstrap-password={PASSWORD}", f"--bootstrap-region-id={REGION}", *urls],
    )


def fill_nova() -> None:
    """Tables, and the two cells that even the smallest deployment has."""
    cell0 = f"mysql+pymysql://minicloud:{PASSWORD}@{ADDRESS}:{PORTS['database']}/nova_cell0"
    _fill(
        "nova-manage",
        "nova/nova.conf",
        ["api_db", "sync"],
        ["cell_v2", "map_cell0", "--database_connection", f"{cell0}?charset=utf8mb4"],
        ["cell_v2", "create_cell", "--name", "cell1"],
        ["db", "sync"],
    )


def fill_databases() -> None:
    """Everything that needs the database, at the same time, unless it was kept; then keep it."""
    if KEPT.exists():
        return
    step(
        "databases of Keystone, Placement, Glance, Neutron and Nova",
        fill_keystone,
        fill_nova,
        lambda: _fill("placement-manage", "placement/placement.conf", ["db", "sync"]),
        lambda: _fill("glance-manage", "glance/glance-api.conf", ["db_sync"]),
        lambda: _fill("neutron-db-manage", "neutron/neutron.conf", ["upgrade", "head"]),
    )
    start_keystone()
    step("catalogue", fill_catalogue)
    stop(["keystone-api"])
    stop(["mariadb"], 60)
    for folder in _TOGETHER:
        shutil.copytree(folder, KEPT / folder.name)
    (KEPT / "made-from").write_text(_made_from())
    _start_mariadb()


def start_api(
    name: str, application: str, *more: str, programs: Path = BIN, **variables: object
) -> None:
    """One API in uWSGI; ``more``: its options, ``programs``: of the environment it is in."""
    command = [
        BIN / "uwsgi",
        f"--http-socket={ADDRESS}:{PORTS[name]}",
        f"--module={application}",
        f"--virtualenv={programs.parent}",
        *(more or ("--threads=4",)),
        "--master",
        "--need-app",
        "--die-on-term",
        "--lazy-apps",
        "--enable-threads",
        "--disable-logging",
        "--buffer-size=65535",
        f"--chunked-input-limit={16 << 20}",  # a snapshot of a disk comes in parts of 1 MiB
        "--add-header=Connection: close",
    ]
    start(f"{name}-api", command, **variables)
    until(lambda: listens(PORTS[name]), f"the API of {name}")


def start_nova_api() -> None:
    """Nova's API: up to Nova 32 it uses eventlet, and has processes instead of threads."""
    module = "nova.wsgi.osapi_compute:application"
    if NOVA < 31:
        module = "nova.api.openstack.compute.wsgi:init_application()"
    many = "--threads=8" if NOVA > 32 else "--processes=4"
    folder = ETC / "nova"
    start_api("nova", module, many, programs=NOVA_BIN, OS_NOVA_CONFIG_DIR=folder)


def start_keystone() -> None:
    """Keystone's API."""
    start_api("keystone", "keystone.wsgi.api:application", OS_KEYSTONE_CONFIG_DIR=ETC / "keystone")


def start_apis() -> None:
    """All APIs, at the same time."""
    neutron = {"OS_NEUTRON_CONFIG_DIR": ETC / "neutron", "OS_NEUTRON_CONFIG_FILES": "neutron.conf"}
    placement = {"OS_PLACEMENT_CONFIG_DIR": ETC / "placement"}
    glance = {"OS_GLANCE_CONFIG_DIR": ETC / "glance"}
    step(
        "APIs",
        start_keystone,
        lambda: start_api("placement", "placement.wsgi.api:application", **placement),
        lambda: start_api("glance", "glance.wsgi.api:application", **glance),
        lambda: start_api("neutron", "neutron.wsgi.api:application", **neutron),
        start_nova_api,
    )
    # A Neutron 29 whose first question is for ports answers 500: its tables get to know each other
    # at the first query of any other kind.
    list(connect().network.networks())


def connect() -> openstack.connection.Connection:
    """A client with the administrator's rights."""
    return openstack.connect(
        auth_url=KEYSTONE,
        username="admin",
        password=PASSWORD,
        project_name="admin",
        user_domain_name="Default",
        project_domain_name="Default",
        region_name=REGION,
        compute_default_microversion="2.96",
    )


def fill_catalogue() -> None:
    """Accounts and endpoints of all services."""
    identity = connect().identity
    domain = identity.find_domain("default")
    project = identity.create_project(name="service", domain_id=domain.id)
    roles = [
        identity.find_role("admin"),
        identity.find_role("service") or identity.create_role(name="service"),
    ]
    for name in ("nova", "placement", "glance", "neutron", "amp-nova"):
        user = identity.create_user(name=name, password=PASSWORD, domain_id=domain.id)
        for role in roles:
            identity.assign_project_role_to_user(project, user, role)
    types = {
        "placement": "placement",
        "glance": "image",
        "nova": "compute",
        "neutron": "network",
        "prometheus": "prometheus",
    }
    for name, kind in types.items():
        service = identity.create_service(name=name, type=kind)
        url = f"http://{ADDRESS}:{PORTS[name]}{'/v2.1' if name == 'nova' else ''}"
        for interface in ("public", "internal", "admin"):
            identity.create_endpoint(
                service_id=service.id, interface=interface, url=url, region_id=REGION
            )


def start_nova() -> None:
    """Conductor and scheduler; they look at Placement when they start, and end without it."""
    for name in ("nova-conductor", "nova-scheduler"):
        start(name, [NOVA_BIN / name, "--config-file", ETC / "nova/nova.conf"])
    cloud = connect()

    def up() -> bool:
        services = {s.binary for s in cloud.compute.services() if s.state == "up"}
        return {"nova-conductor", "nova-scheduler"} <= services

    until(up, "conductor and scheduler")


def wait_for_computes() -> None:
    """Until every compute host is up, has a resource provider, and is mapped to its cell.

    The scheduler maps them. One that is not mapped is not listed as a hypervisor.
    """
    cloud, names = connect(), {host.name for host in HOSTS}

    def up() -> bool:
        for host in names:
            if running(f"nova-compute-{host}") is None:
                raise Failed(f"nova-compute of {host} ended; see {LOG}")
        here = {s.host for s in cloud.compute.services(binary="nova-compute") if s.state == "up"}
        providers = {p.name for p in cloud.placement.resource_providers()}
        return names <= here & providers & {h.name for h in cloud.compute.hypervisors()}

    until(up, "the computes", 90)


def start_prometheus() -> None:
    """Prometheus, which scrapes both agents."""
    command = [
        "prometheus",
        f"--config.file={ETC}/prometheus.yaml",
        f"--storage.tsdb.path={STATE}/prometheus",
        f"--web.listen-address={ADDRESS}:{PORTS['prometheus']}",
    ]
    start("prometheus", command)
    until(lambda: listens(PORTS["prometheus"]), "Prometheus")
