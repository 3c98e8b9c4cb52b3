"""Reads the description of a cloud: a scenario with ``cloud`` instead of a host and VMs."""

from collections.abc import Mapping
from dataclasses import dataclass

from amp_nova.model.topology import Topology
from amp_nova.scheduling.sensitivity import SENSITIVITY_MAX, UNKNOWN
from amp_nova.sim.cloud.host import CloudFlavor
from amp_nova.sim.cloud.run import Cloud
from amp_nova.sim.scenarios import hosts
from amp_nova.sim.scenarios.document import Value
from amp_nova.sim.scenarios.scenario import SETTINGS, read_booking

HOSTS_MAX = 10_000
VCPUS_MAX = 512
ARRIVALS_MAX = 10_000_000
REQUIRED = ("hosts", "flavors", "instances_per_host", "lifetime_s")


@dataclass(frozen=True, slots=True)
class CloudScenario:
    """A cloud, and for how long it is simulated."""

    name: str
    cloud: Cloud
    duration_s: float
    seed: int = 0


def describes(whole: Value) -> bool:
    """Whether a file describes a cloud; if not, ``scenario.read`` reads it."""
    return whole.is_mapping and "cloud" in whole.entries()


def read(whole: Value, replaced: Mapping[str, Value]) -> CloudScenario:
    """The description of a cloud; raises ``ScenarioInvalid`` with one sentence.

    ``replaced``: values of ``duration_s`` and ``seed`` that replace those of the file.
    """
    keys = whole.fields(("name", "duration_s", "seed", "policy", "cloud"), ("duration_s", "cloud"))
    keys = {**keys, **replaced}
    of_cloud = keys["cloud"].fields((*REQUIRED, "vcpus_ratio", "candidates"), REQUIRED)
    more = {}
    if "vcpus_ratio" in of_cloud:
        more["vcpus_ratio"] = of_cloud["vcpus_ratio"].number(0, 1000, above=True)
    candidates = of_cloud["candidates"].whole(1, HOSTS_MAX) if "candidates" in of_cloud else 100
    cloud = Cloud(
        _hosts(of_cloud["hosts"]),
        _flavors(of_cloud["flavors"]),
        of_cloud["instances_per_host"].number(0, 1000, above=True),
        of_cloud["lifetime_s"].number(1),
        keys["policy"].text() if "policy" in keys else "none",
        candidates=candidates,
        **more,
    )
    found = CloudScenario(
        keys["name"].text() if "name" in keys else whole.file_stem,
        cloud,
        SETTINGS["duration_s"](keys["duration_s"]),
        SETTINGS["seed"](keys["seed"]) if "seed" in keys else 0,
    )
    arrivals = len(cloud.hosts) * cloud.instances_per_host * found.duration_s / cloud.lifetime_s
    if arrivals > ARRIVALS_MAX:
        raise keys["cloud"].wrong(
            f"about {arrivals:.3g} instances would arrive, and at most {ARRIVALS_MAX} are "
            "simulated: reduce the hosts or duration_s, or raise lifetime_s"
        )
    return found


def _hosts(value: Value) -> tuple[Topology, ...]:
    found: list[Topology] = []
    for item in value.items("a list of kinds of hosts"):
        keys = item.fields(("count", *hosts.HOST_KEYS), ("count", "core_types"))
        count = keys["count"].whole(1, HOSTS_MAX)
        ips = keys["reference_ips"].number(0, above=True) if "reference_ips" in keys else None
        if len(found) + count > HOSTS_MAX:
            raise keys["count"].wrong(f"the cloud has more than {HOSTS_MAX} hosts: reduce counts")
        found += [hosts.read(keys, ips)[0]] * count
    if not found:
        raise value.wrong(f"{value.path} is empty: a cloud has a host")
    return tuple(found)


def _flavors(value: Value) -> tuple[CloudFlavor, ...]:
    found: dict[str, CloudFlavor] = {}
    for item in value.items("a list of flavors"):
        keys = item.fields(("name", "vcpus", "extra_specs", "share", "sensitivity"), ("name",))
        name = keys["name"].text()
        if name in found:
            raise keys["name"].wrong(f"there are two flavors called '{name}': rename one")
        vcpus = keys["vcpus"].whole(1, VCPUS_MAX) if "vcpus" in keys else 1
        _, booking = read_booking(keys, vcpus, f"flavor '{name}'")
        share, gain = keys.get("share"), keys.get("sensitivity")
        found[name] = CloudFlavor(
            name,
            booking,
            share.number(0, 1e6, above=True) if share else 1.0,
            gain.number(0, SENSITIVITY_MAX) if gain else UNKNOWN,
        )
    if not found:
        raise value.wrong(f"{value.path} is empty: a cloud has a flavor")
    return tuple(found.values())
