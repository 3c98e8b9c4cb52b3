# SPDX-License-Identifier: Apache-2.0
"""A scenario: a host, its guests and what they do.

``doc/source/user/simulator.rst`` documents the keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from msgspec import Meta
from msgspec import field as key

from amp_nova.agent.loop import LoopSettings
from amp_nova.exceptions import BookingInvalid
from amp_nova.flavor.extra_specs import Booking, parse
from amp_nova.model.topology import Topology
from amp_nova_lab.printed_controller import LOOPS
from amp_nova_lab.scenarios import hosts
from amp_nova_lab.scenarios import workload as workloads
from amp_nova_lab.scenarios.document import (
    Keys,
    Place,
    Text,
    decode,
    one_of,
)
from amp_nova_lab.scenarios.hosts import HostKeys, Machine
from amp_nova_lab.scenarios.workload import Workload, WorkloadKeys

T = TypeVar("T", bound=Any)
VCPUS_MAX = 4096
Duration = Annotated[float, Meta(gt=0, le=31 * 86_400.0)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class RunKeys(Keys, frozen=True):
    """How to run a scenario; the command line may give these keys."""

    duration_s: Duration | None = None
    seed: Seed | None = None
    ips_controller: Annotated[str, one_of(*LOOPS)] | None = None


class VmKeys(Keys, frozen=True):
    """A virtual machine."""

    name: Text
    vcpus: Annotated[int, Meta(ge=1, le=VCPUS_MAX)] = 1
    extra_specs: dict[str, str] = key(default_factory=dict)
    workload: WorkloadKeys = WorkloadKeys()
    start_on: Text | None = None


AgentKeys = dict[str, str | list[str]]


class FileKeys(Keys, frozen=True, kw_only=True):
    """What scenarios and descriptions of clouds have."""

    duration_s: Duration
    name: Text | None = None
    seed: Seed = 0


class ScenarioKeys(FileKeys, frozen=True, kw_only=True):
    """A scenario; ``agent``: options of ``[agent]``, and ``ips_controller``.

    ``recorded`` is in recordings, and not read here.
    """

    host: HostKeys
    vms: list[VmKeys]
    policy: Text = "none"
    agent: AgentKeys = key(default_factory=dict)
    recorded: object = None


@dataclass(frozen=True, slots=True)
class Guest:
    """One virtual machine of a scenario."""

    name: str
    booking: Booking
    workload: Workload
    specs: Mapping[str, str]
    start_on: str | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A host, its guests, and how to run them."""

    name: str
    duration_s: float
    topology: Topology
    guests: tuple[Guest, ...]
    policy: str = "none"
    seed: int = 0
    ips_controller: str = "default"
    machine: Machine = field(default_factory=Machine)
    agent: LoopSettings = field(default_factory=LoopSettings)


AgentOptions = Callable[[AgentKeys, Place], LoopSettings]


def read(whole: Place, agent_options: AgentOptions) -> Scenario:
    """The scenario in a document; raises ``ScenarioInvalid`` with one sentence.

    ``agent_options`` reads the options under ``agent``, except ``ips_controller``.
    """
    keys = decode(whole, ScenarioKeys)
    topology, machine = hosts.read(keys.host, whole["host"])
    guests: dict[str, Guest] = {}
    vcpus_left = VCPUS_MAX
    for number, vm in enumerate(keys.vms):
        at = whole["vms"][number]
        if vm.name in guests:
            raise at["name"].wrong(f"there are two VMs called '{vm.name}': rename one")
        if vm.vcpus > vcpus_left:
            raise at["vcpus"].wrong(f"all VMs have more than {VCPUS_MAX} vCPUs: reduce the counts")
        vcpus_left -= vm.vcpus
        guests[vm.name] = _guest(vm, at, topology)
    controller = keys.agent.pop("ips_controller", "default")
    if controller not in list(LOOPS):
        at = whole["agent"]["ips_controller"]
        raise at.refused(f"an Ips controller: {', '.join(LOOPS)}")
    return Scenario(
        name=keys.name or Path(whole.file).stem,
        duration_s=keys.duration_s,
        topology=topology,
        guests=tuple(guests.values()),
        policy=keys.policy,
        seed=keys.seed,
        ips_controller=str(controller),
        machine=machine,
        agent=agent_options(keys.agent, whole["agent"]),
    )


def override(made: T, texts: dict[str, str]) -> T:
    """The scenario with other ``RunKeys``, which are removed from ``texts``."""
    values = {key: texts.pop(key) for key in RunKeys.__struct_fields__ if key in texts}
    nodes = [(yaml.ScalarNode("", key), yaml.ScalarNode("", text)) for key, text in values.items()]
    keys = decode(Place(yaml.MappingNode("", nodes), "--set"), RunKeys)
    return replace(made, **{key: getattr(keys, key) for key in values})


def read_booking(specs: Mapping[str, str], vcpus: int, at: Place, who: str) -> Booking:
    """What the extra specs of a VM or a flavor book."""
    try:
        return parse(specs, vcpus)
    except BookingInvalid as exc:
        raise at["extra_specs"].wrong(f"{who}: {exc}") from exc


def _guest(vm: VmKeys, at: Place, topology: Topology) -> Guest:
    types = [t.name for t in topology.core_types]
    booking = read_booking(vm.extra_specs, vm.vcpus, at, f"VM '{vm.name}'")
    if booking.core_type not in (None, *types):
        raise at["extra_specs"].wrong(
            f"VM '{vm.name}': amp:core_type={booking.core_type} is not on this host: "
            f"it has {', '.join(types)}"
        )
    if vm.start_on not in (None, *types):
        raise at["start_on"].refused(f"a core type of the host: {', '.join(types)}")
    workload = workloads.read(vm.workload, at["workload"], topology, vm.vcpus)
    return Guest(vm.name, booking, workload, vm.extra_specs, vm.start_on)
