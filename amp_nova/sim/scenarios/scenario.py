"""A scenario: a host, its guests and what they do.

``doc/source/user/simulator.rst`` documents the keys.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from amp_nova.agent.loop import Settings
from amp_nova.control.ips_controller import CONTROLLERS
from amp_nova.exceptions import BookingInvalid
from amp_nova.flavor.extra_specs import Booking, parse
from amp_nova.model.topology import Topology
from amp_nova.sim.scenarios import hosts
from amp_nova.sim.scenarios import workload as workloads
from amp_nova.sim.scenarios.document import Value, of_pairs
from amp_nova.sim.scenarios.hosts import Machine
from amp_nova.sim.scenarios.workload import Workload

VCPUS_MAX = 4096
DURATION_MAX_S = 31 * 86_400.0
SEED_MAX = 2**63 - 1
SETTINGS: Mapping[str, Callable[[Value], Any]] = {
    "duration_s": lambda value: value.number(0, DURATION_MAX_S, above=True),
    "seed": lambda value: value.whole(0, SEED_MAX),
    "ips_controller": lambda value: value.one_of(list(CONTROLLERS), "an Ips controller"),
}
"""How to run a scenario; the command line may override these keys."""


@dataclass(frozen=True, slots=True)
class Guest:
    """One virtual machine of a scenario. ``limit_cores``: of all its vCPUs together."""

    name: str
    booking: Booking
    workload: Workload
    specs: Mapping[str, str]
    start_on: str | None = None
    limit_cores: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A host, its guests, and how to run them."""

    name: str
    duration_s: float
    topology: Topology
    guests: tuple[Guest, ...]
    policy: str = "none"
    seed: int = 0
    reference_ips: float | None = None
    ips_controller: str = "default"
    machine: Machine = field(default_factory=Machine)
    agent: Settings = field(default_factory=Settings)


AgentOptions = Callable[[Mapping[str, Value]], Settings]


def read(whole: Value, agent_options: AgentOptions) -> Scenario:
    """The scenario in a document; raises ``ScenarioInvalid`` with one sentence.

    ``agent_options`` reads the options under ``agent``, except ``ips_controller``. The key
    ``recorded``, which only recordings have, is not read here.
    """
    keys = whole.fields(
        ("name", "duration_s", "seed", "host", "vms", "policy", "agent", "recorded"),
        ("duration_s", "host", "vms"),
    )
    host = keys["host"].fields(hosts.HOST_KEYS, ("core_types",))
    ips = host["reference_ips"].number(0, above=True) if "reference_ips" in host else None
    agent = keys["agent"].entries() if "agent" in keys else {}
    controller = {k: agent.pop(k) for k in ("ips_controller",) if k in agent}
    settings = {k: read(v) for k, read in SETTINGS.items() if (v := {**keys, **controller}.get(k))}
    topology, machine = hosts.read(host, ips)
    guests: dict[str, Guest] = {}
    vcpus_left = VCPUS_MAX
    for value in keys["vms"].items("a list of VMs"):
        guest = _guest(value, topology, guests, vcpus_left)
        vcpus_left -= len(guest.booking.vcpus)
        guests[guest.name] = guest
    return Scenario(
        name=keys["name"].text() if "name" in keys else whole.file_stem,
        topology=topology,
        guests=tuple(guests.values()),
        policy=keys["policy"].text() if "policy" in keys else "none",
        reference_ips=ips,
        machine=machine,
        agent=agent_options(agent),
        **settings,
    )


def override(scenario: Scenario, texts: dict[str, str]) -> Scenario:
    """The scenario with other ``SETTINGS``, which are removed from ``texts``."""
    given = of_pairs("--set", {key: texts.pop(key) for key in SETTINGS if key in texts})
    return replace(scenario, **{key: SETTINGS[key](value) for key, value in given.items()})


def read_booking(
    keys: Mapping[str, Value], vcpus: int, who: str
) -> tuple[Mapping[str, str], Booking]:
    """The extra specs of a VM or a flavor, and what they book."""
    specs: dict[str, str] = {}
    if "extra_specs" in keys:
        specs = {k: v.raw() for k, v in keys["extra_specs"].entries().items()}
    try:
        return specs, parse(specs, vcpus)
    except BookingInvalid as exc:
        raise keys["extra_specs"].wrong(f"{who}: {exc}") from exc


def _guest(value: Value, topology: Topology, taken: Collection[str], vcpus_left: int) -> Guest:
    known = ("name", "vcpus", "extra_specs", "workload", "start_on", "limit_cores")
    keys = value.fields(known, ("name",))
    name = keys["name"].text()
    if name in taken:
        raise keys["name"].wrong(f"there are two VMs called '{name}': rename one")
    vcpus = keys["vcpus"].whole(1, VCPUS_MAX) if "vcpus" in keys else 1
    if vcpus > vcpus_left:
        raise keys["vcpus"].wrong(f"all VMs have more than {VCPUS_MAX} vCPUs: reduce the counts")
    types = [t.name for t in topology.core_types]
    specs, booking = read_booking(keys, vcpus, f"VM '{name}'")
    if booking.core_type not in (None, *types):
        raise keys["extra_specs"].wrong(
            f"VM '{name}': amp:core_type={booking.core_type} is not on this host: "
            f"it has {', '.join(types)}"
        )
    start_on = None
    if "start_on" in keys:
        start_on = keys["start_on"].one_of(types, "a core type of the host")
    if "workload" in keys:
        workload = workloads.read(keys["workload"], topology, vcpus)
    else:
        workload = workloads.usual(topology)
    limit_cores = keys["limit_cores"].number(0, above=True) if "limit_cores" in keys else None
    return Guest(name, booking, workload, specs, start_on, limit_cores)
