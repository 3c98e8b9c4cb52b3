# SPDX-License-Identifier: Apache-2.0
"""The configuration files of all services, as a small real deployment would have them."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from tools.cloud.layout import (
    ADDRESS,
    BIN,
    CORES,
    ETC,
    HOSTS,
    INSTANCES,
    LOG,
    NOVA,
    NOVA_BIN,
    PASSWORD,
    PORTS,
    REGION,
    RESERVE_RATIO,
    ROOT,
    STATE,
    WRITER,
    Host,
)

Sections = Mapping[str, Mapping[str, object]]
DATABASES = ("keystone", "placement", "glance", "neutron", "nova_api", "nova_cell0", "nova")
FILTERS = (
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
    "AmpCapacityFilter",
)
IPS = "300M"
FLAVORS = {
    "half": "amp:pref_core=0.5",
    "best-effort": "",
}
"""What a new cloud offers, and what each books."""
if CORES == 1:  # else nobody measured what a core retires
    FLAVORS["instructions"] = f"amp:ips={IPS}"
BOOKINGS_IN_METADATA = NOVA >= 32
"""Whether agents see what servers book; else their configuration has it, by flavor."""
KEYSTONE = f"http://{ADDRESS}:{PORTS['keystone']}/v3"
BUS = f"rabbit://guest:guest@{ADDRESS}:{PORTS['rabbitmq']}/"


def database(name: str) -> dict[str, object]:
    """A [database] section."""
    where = f"{ADDRESS}:{PORTS['database']}/{name}"
    url = f"mysql+pymysql://minicloud:{PASSWORD}@{where}?charset=utf8mb4"
    return {"connection": url, "max_pool_size": 5, "max_overflow": 50}


def account(user: str) -> dict[str, object]:
    """How a service authenticates with Keystone."""
    return {
        "auth_type": "password",
        "auth_url": KEYSTONE,
        "username": user,
        "password": PASSWORD,
        "project_name": "service",
        "user_domain_name": "Default",
        "project_domain_name": "Default",
    }


def client(user: str) -> dict[str, object]:
    """How a service authenticates when it calls another one."""
    return {**account(user), "region_name": REGION}


def checked(user: str) -> dict[str, object]:
    """How a service checks the tokens of its callers."""
    return {**account(user), "www_authenticate_uri": KEYSTONE}


def write(path: Path, sections: Sections) -> None:
    """Write an INI file; a list becomes one line for each of its values."""
    lines = []
    for section, options in sections.items():
        lines.append(f"[{section}]")
        for key, value in options.items():
            lines += [f"{key} = {v}" for v in (value if isinstance(value, list) else [value])]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def keystone() -> Sections:
    """Fernet tokens that outlive any test, and cheap password hashes."""
    return {
        "database": database("keystone"),
        "token": {"provider": "fernet", "expiration": 86400},
        "fernet_tokens": {"key_repository": ETC / "keystone/fernet"},
        "credential": {"key_repository": ETC / "keystone/credential"},
        "identity": {"password_hash_algorithm": "bcrypt", "password_hash_rounds": 4},
        "cache": {"enabled": True, "backend": "oslo_cache.dict"},
    }


def placement() -> Sections:
    """Nothing unusual."""
    return {
        "placement_database": database("placement"),
        "api": {"auth_strategy": "keystone"},
        "keystone_authtoken": checked("placement"),
    }


def glance() -> Sections:
    """Images in a folder."""
    stores = {name: STATE / f"glance/{name}" for name in ("file", "staging", "tasks")}
    return {
        "DEFAULT": {"enabled_backends": "file:file", "enabled_import_methods": "[]"},
        "database": database("glance"),
        "glance_store": {"default_backend": "file"},
        "file": {"filesystem_store_datadir": stores["file"]},
        "os_glance_staging_store": {"filesystem_store_datadir": stores["staging"]},
        "os_glance_tasks_store": {"filesystem_store_datadir": stores["tasks"]},
        "paste_deploy": {
            "flavor": "keystone",
            "config_file": ETC / "glance/glance-api-paste.ini",
        },
        "keystone_authtoken": checked("glance"),
    }


def neutron() -> Sections:
    """The API alone: servers have no ports here, and Nova asks whether they have."""
    return {
        "DEFAULT": {
            "core_plugin": "ml2",
            "service_plugins": "",
            "transport_url": BUS,
            "auth_strategy": "keystone",
            "api_paste_config": ETC / "neutron/api-paste.ini",
            "state_path": STATE / "neutron",
            "notify_nova_on_port_status_changes": False,
            "notify_nova_on_port_data_changes": False,
        },
        "ml2": {
            "type_drivers": "local",
            "tenant_network_types": "local",
            "mechanism_drivers": "openvswitch",
        },
        "database": database("neutron"),
        "oslo_concurrency": {"lock_path": STATE / "lock"},
        "keystone_authtoken": checked("neutron"),
    }


def nova() -> Sections:
    """What all Nova services share; what is for one cell's computes is in ``compute``."""
    return {
        "DEFAULT": {
            "host": "control",
            "my_ip": ADDRESS,
            "state_path": STATE / "nova",
            "transport_url": BUS,
            "periodic_fuzzy_delay": 0,
            "service_down_time": 20,
            "report_interval": 4,
        },
        "api_database": database("nova_api"),
        "database": database("nova"),
        "oslo_concurrency": {"lock_path": STATE / "lock"},
        "scheduler": {
            "workers": 2,
            "discover_hosts_in_cells_interval": 2,
        },
        "filter_scheduler": {
            "available_filters": [
                "nova.scheduler.filters.all_filters",
                "amp_nova.nova_plugins.filters.AmpCapacityFilter",
            ],
            "enabled_filters": ",".join(FILTERS),
            "weight_classes": ",".join(
                (
                    "nova.scheduler.weights.all_weighers",
                    "amp_nova.nova_plugins.weights.AmpEfficiencyWeigher",
                    "amp_nova.nova_plugins.weights.AmpScalabilityWeigher",
                )
            ),
        },
        "conductor": {"workers": 2},
        "quota": dict.fromkeys(("instances", "cores", "ram"), -1),
        "vnc": {"enabled": False},
        "neutron": client("nova"),
        "placement": client("nova"),
        "glance": client("nova"),
        "service_user": {**client("nova"), "send_service_user_token": True},
        "keystone_authtoken": {**checked("nova"), "service_token_roles_required": True},
    }


def compute(host: Host) -> Sections:
    """One nova-compute: the libvirt driver, its cores, and what makes moves possible here."""
    privileged = f"{NOVA_BIN}/privsep-helper --config-file {ETC}/nova/nova-compute.conf"
    peer = f"qemu+unix:///system?socket={STATE}/hosts/%s/run/libvirt-sock"
    return {
        "DEFAULT": {
            "host": host.name,
            "compute_driver": "libvirt.LibvirtDriver",
            "state_path": STATE / "nova" / host.name,
            "instances_path": INSTANCES,
            # Else a cold migration makes a qcow2 file of a raw disk, and uses it as raw.
            "use_cow_images": False,
            # The guests here do not answer to ACPI: waiting longer would change nothing.
            "shutdown_timeout": 1,
            # Bookings limit how many guests a core takes.
            "cpu_allocation_ratio": 32.0,
            # file_backed_memory insists on these two.
            "ram_allocation_ratio": 1.0,
            "reserved_host_memory_mb": 0,
        },
        "compute": {"cpu_shared_set": host.pcpus},
        "libvirt": {
            "virt_type": "qemu",
            "cpu_mode": "none",
            "images_type": "raw",
            "disk_cachemodes": "file=none",
            "wait_soft_reboot_seconds": 1,
            "live_migration_uri": peer,
            "live_migration_inbound_addr": host.address,
            # The counters of the guests' work are read in the file behind their memory.
            "file_backed_memory": 4096,
        },
        "nova_sys_admin": {"helper_command": privileged},
    }


def agent(host: Host, declared: str = "" if CORES == 1 else "1.0") -> Sections:
    """The agent of one host, whose cores are of one type; the slow one is the reference.

    ``declared``: its coefficient, unless it is calibrated.
    """
    booked = [] if BOOKINGS_IN_METADATA else [f"{f} {s}" for f, s in FLAVORS.items() if s]
    return {
        "topology": {
            "core_type": f"{host.name} {host.pcpus} {declared}",
            "reference": "slow",
            "calibration_file": host.calibration,
        },
        "agent": {
            "state_path": host.folder / "amp-nova",
            "writer": WRITER,
            # The services of the cloud and of the host run on the cores of its guests as well.
            "reserve_ratio": RESERVE_RATIO,
            "booking": booked,
        },
        "nova": {"cpu_shared_set": host.pcpus},
        "reports": {"transport_url": BUS},
        "placement": {"enabled": True, **client("amp-nova")},
        "exporter": {"address": ADDRESS, "port": host.metrics_port, "detail": "vcpu"},
    }


def prometheus() -> object:
    """One job, whose label ``host`` is what ``openstack amp`` goes by, and the rules if any."""
    targets = [
        {"targets": [f"{ADDRESS}:{host.metrics_port}"], "labels": {"host": host.name}}
        for host in HOSTS
    ]
    rules = ROOT / "etc/amp-nova/prometheus"
    return {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "5s"},
        "scrape_configs": [{"job_name": "amp-nova", "static_configs": targets}],
        "rule_files": [str(rules / name) for name in ("rules.yaml", "alerts.yaml")],
    }


def tempest(flavor: str) -> Sections:
    """Tempest's: the administrator, what this cloud has not, and what our plugin measures with."""
    return {
        "DEFAULT": {"log_dir": LOG, "log_file": "tempest.log"},
        "oslo_concurrency": {"lock_path": STATE / "lock"},
        "auth": {
            "admin_username": "admin",
            "admin_password": PASSWORD,
            "admin_project_name": "admin",
            "admin_domain_name": "Default",
        },
        "identity": {"uri_v3": KEYSTONE, "region": REGION},
        "service_available": dict.fromkeys(("cinder", "swift", "horizon"), False),
        "compute": {
            "flavor_ref": flavor,
            "min_compute_nodes": len(HOSTS),
            "max_microversion": "latest",
        },
        "compute-feature-enabled": {"resize": True},
        "placement": {"max_microversion": "latest"},
        "amp_nova": {
            "prometheus_url": f"http://{ADDRESS}:{PORTS['prometheus']}",
            "window": 10,
        },
    }


def write_all() -> None:
    """Write every service's files, and openrc for the client."""
    for folder in ("lock", "tmp", "neutron", "nova"):
        (STATE / folder).mkdir(parents=True, exist_ok=True)
    write(ETC / "keystone/keystone.conf", keystone())
    write(ETC / "placement/placement.conf", placement())
    write(ETC / "glance/glance-api.conf", glance())
    write(ETC / "neutron/neutron.conf", neutron())
    write(ETC / "nova/nova.conf", nova())
    # A nova-compute that sees a database refuses to start.
    databases = ("database", "api_database")
    shared = {name: options for name, options in nova().items() if name not in databases}
    write(ETC / "nova/nova-compute.conf", shared)
    for host in HOSTS:
        write(ETC / f"nova/compute-{host.name}.conf", compute(host))
        write(host.agent_conf, agent(host))
        host.agent_conf.chmod(0o640)  # it holds the password of the message bus
    (ETC / "prometheus.yaml").write_text(yaml.safe_dump(prometheus()))
    for paste in ("glance/glance-api-paste.ini", "neutron/api-paste.ini", "nova/api-paste.ini"):
        programs = NOVA_BIN if paste.startswith("nova/") else BIN
        shutil.copy(programs.parent / "etc" / paste, ETC / paste)
    openrc = {
        "OS_AUTH_URL": KEYSTONE,
        "OS_USERNAME": "admin",
        "OS_PASSWORD": PASSWORD,
        "OS_PROJECT_NAME": "admin",
        "OS_USER_DOMAIN_NAME": "Default",
        "OS_PROJECT_DOMAIN_NAME": "Default",
        "OS_IDENTITY_API_VERSION": "3",
        "OS_REGION_NAME": REGION,
        # A number: the client takes "2.latest" for 2.1 with flavors, where nothing is validated.
        "OS_COMPUTE_API_VERSION": "2.96",
        "OS_PLACEMENT_API_VERSION": "1.39",
        "PYTHONWARNINGS": "ignore",
    }
    lines = [f"export {key}={value}" for key, value in openrc.items()]
    (STATE / "openrc").write_text("\n".join([*lines, f"export PATH={BIN}:$PATH", ""]))
    LOG.mkdir(parents=True, exist_ok=True)
