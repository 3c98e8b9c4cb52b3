# SPDX-License-Identifier: Apache-2.0
"""Where everything of the mini-cloud is: folders, ports, hosts."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(os.environ.get("MINICLOUD", ROOT / ".minicloud"))
STATE = HOME / "state"
"""All that a running cloud writes; the next ``up`` begins with an empty one."""
ETC, LOG, RUN = STATE / "etc", STATE / "log", STATE / "run"
INSTANCES, INSTANCES_BACKING = STATE / "instances", STATE / "instances.backing"
BIN = Path(sys.prefix) / "bin"

NEWEST = 34
NOVA = int(os.environ.get("MINICLOUD_NOVA") or NEWEST)
"""The release of Nova's services; all others are of one OpenStack release."""
NOVA_BIN = BIN if NOVA == NEWEST else HOME / f"venv-{NOVA}/bin"

CORES = int(os.environ.get("MINICLOUD_CORES", "1"))
"""Of each host. One: a core of its own, fast or slow. More: the same first cores of the machine as
the other host, equally fast, for tests of what fits and not of what is delivered."""

WRITER = os.environ.get("AMP_NOVA_WRITER", "cgroup")
"""What the agents of the cloud write through, when it is brought up and in its tests."""

ADDRESS = "127.0.0.1"
_BASE = int(os.environ.get("MINICLOUD_PORT", "21300"))
_SERVICES = ("rabbitmq", "distribution", "epmd", "database")
_APIS = ("keystone", "placement", "glance", "nova", "neutron", "prometheus")
PORTS = {name: _BASE + i for i, name in enumerate((*_SERVICES, *_APIS))}

PASSWORD = "minicloud"
"""Of every account. All of them are reached on the loopback address only."""
REGION = "RegionOne"


@dataclass(frozen=True, slots=True)
class Host:
    """One compute host: cores of this machine, and namespaces that make it a machine apart."""

    name: str
    number: int

    @property
    def pcpus(self) -> str:
        """Its cores, by the machine's numbers."""
        return str(self.number) if CORES == 1 else f"0-{CORES - 1}"

    @property
    def folder(self) -> Path:
        """What this host has for itself; bound over the machine's folders in its namespace."""
        return STATE / "hosts" / self.name

    @property
    def address(self) -> str:
        """Where it is reached by live migrations."""
        return f"127.0.1.{self.number + 1}"

    @property
    def socket(self) -> Path:
        """Its libvirt."""
        return self.folder / "run/libvirt-sock"

    @property
    def uri(self) -> str:
        """Its libvirt, from outside of its namespaces."""
        return f"qemu:///system?socket={self.socket}"

    @property
    def agent_conf(self) -> Path:
        """The configuration of its amp-nova-agent."""
        return ETC / f"agent-{self.name}.conf"

    @property
    def calibration(self) -> Path:
        """What ``amp-nova calibrate`` measured on it."""
        return self.folder / "calibration.json"

    @property
    def metrics_port(self) -> int:
        """Where its agent serves metrics."""
        return _BASE + 20 + self.number


FAST, SLOW = Host("fast", 0), Host("slow", 1)
HOSTS = (FAST, SLOW)

RESERVE_RATIO = 0.07
"""The share of each core that is not sold: 5 % for best effort, 2 % for services."""
