# SPDX-License-Identifier: Apache-2.0
"""Reads the description of a cloud: a scenario with ``cloud`` instead of a host and VMs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta, field

from amp_nova.model.topology import Topology
from amp_nova.scheduling.sensitivity import SENSITIVITY_MAX, UNKNOWN
from amp_nova_lab.cloud.host import RESERVE_RATIO, CloudFlavor
from amp_nova_lab.cloud.run import SimulatedCloud
from amp_nova_lab.scenarios import hosts, scenario
from amp_nova_lab.scenarios.document import Keys, Place, Text, decode
from amp_nova_lab.scenarios.hosts import HostKeys
from amp_nova_lab.scenarios.scenario import FileKeys

HOSTS_MAX = 10_000
ARRIVALS_MAX = 10_000_000


class HostsKeys(HostKeys, frozen=True, kw_only=True):
    """A kind of hosts, and how many there are."""

    count: Annotated[int, Meta(ge=1, le=HOSTS_MAX)]


class FlavorKeys(Keys, frozen=True):
    """A flavor; ``share`` and ``sensitivity`` as in ``CloudFlavor``."""

    name: Text
    vcpus: Annotated[int, Meta(ge=1, le=512)] = 1
    extra_specs: dict[str, str] = field(default_factory=dict)
    share: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    sensitivity: Annotated[float, Meta(ge=0, le=SENSITIVITY_MAX)] = UNKNOWN


class CloudKeys(Keys, frozen=True):
    """A cloud; the keys are those of ``SimulatedCloud``."""

    hosts: Annotated[list[HostsKeys], Meta(min_length=1)]
    flavors: Annotated[list[FlavorKeys], Meta(min_length=1)]
    instances_per_host: Annotated[float, Meta(gt=0, le=1000)]
    lifetime_s: Annotated[float, Meta(ge=1, le=1e15)]
    vcpus_ratio: Annotated[float, Meta(gt=0, le=1000)] = 4.0
    candidates: Annotated[int, Meta(ge=1, le=HOSTS_MAX)] = 100
    reserve_ratio: Annotated[float, Meta(ge=0, le=0.9)] = RESERVE_RATIO


class DescriptionKeys(FileKeys, frozen=True, kw_only=True):
    """The whole file."""

    cloud: CloudKeys


@dataclass(frozen=True, slots=True)
class CloudScenario:
    """A cloud, and for how long it is simulated."""

    name: str
    cloud: SimulatedCloud
    duration_s: float
    seed: int = 0


def describes(whole: Place) -> bool:
    """Whether a file describes a cloud; if not, ``scenario.read`` reads it."""
    return "cloud" in whole.entries()


def read(whole: Place, replaced: dict[str, str]) -> CloudScenario:
    """The description of a cloud; raises ``ScenarioInvalid`` with one sentence.

    ``replaced``: ``duration_s`` and ``seed`` in place of those of the file.
    """
    keys, at = decode(whole, DescriptionKeys), whole["cloud"]
    cloud = SimulatedCloud(
        _hosts(keys.cloud.hosts, at["hosts"]),
        _flavors(keys.cloud.flavors, at["flavors"]),
        keys.cloud.instances_per_host,
        keys.cloud.lifetime_s,
        keys.cloud.vcpus_ratio,
        keys.cloud.candidates,
        keys.cloud.reserve_ratio,
    )
    name = keys.name or Path(whole.file).stem
    run = scenario.override(CloudScenario(name, cloud, keys.duration_s, keys.seed), replaced)
    arrivals = len(cloud.hosts) * cloud.instances_per_host * run.duration_s / cloud.lifetime_s
    if arrivals > ARRIVALS_MAX:
        raise at.wrong(
            f"about {arrivals:.3g} instances would arrive, and at most {ARRIVALS_MAX} are "
            "simulated: reduce the hosts or duration_s, or raise lifetime_s"
        )
    return run


def _hosts(kinds: list[HostsKeys], at: Place) -> tuple[Topology, ...]:
    topologies: list[Topology] = []
    for number, kind in enumerate(kinds):
        if len(topologies) + kind.count > HOSTS_MAX:
            raise at[number]["count"].wrong(
                f"the cloud has more than {HOSTS_MAX} hosts: reduce counts"
            )
        topologies += [hosts.read(kind, at[number])[0]] * kind.count
    return tuple(topologies)


def _flavors(flavors: list[FlavorKeys], at: Place) -> tuple[CloudFlavor, ...]:
    by_name: dict[str, CloudFlavor] = {}
    for number, each in enumerate(flavors):
        name, here = each.name, at[number]
        if name in by_name:
            raise here["name"].wrong(f"there are two flavors called '{name}': rename one")
        booking = scenario.read_booking(each.extra_specs, each.vcpus, here, f"flavor '{name}'")
        by_name[name] = CloudFlavor(name, booking, each.share, each.sensitivity)
    return tuple(by_name.values())
