"""The I/O part of a domain's XML: pins of I/O threads, interfaces and their bandwidth."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_nova.exceptions import sentence
from amp_nova.model.cpulist import parse_cpuset

OTHERS = frozenset({"hostdev", "vdpa", "vhostuser"})
"""Types of interfaces whose traffic is not carried by threads of the domain."""
_BYTES = 1000
"""libvirt states bandwidth in kilobytes per second."""


@dataclass(frozen=True, slots=True)
class InterfaceXml:
    """One interface: its host device (``None``: it has none) and its limits.

    ``host_view``: the device counts in the same direction as the guest (macvtap); a tap counts in
    the opposite one.
    """

    device: str | None
    host_view: bool = False
    in_limit_bytes_s: float | None = None
    out_limit_bytes_s: float | None = None


@dataclass(frozen=True, slots=True)
class IoDefinition:
    """Pins (``None``: not pinned) and interfaces of one domain.

    ``problem``: why it cannot be parsed; then only the domain's I/O is ignored.
    """

    emulator: frozenset[int] | None = None
    iothreads: Mapping[int, frozenset[int]] = field(default_factory=dict)
    interfaces: tuple[InterfaceXml, ...] = ()
    problem: str | None = None


def parse(root: ET.Element) -> IoDefinition:
    """Parse the I/O part of a domain's XML."""
    try:
        return _parse(root)
    except ValueError as exc:
        return IoDefinition(problem=sentence(f"its pins or interfaces cannot be read: {exc}"))


def _parse(root: ET.Element) -> IoDefinition:
    pin = root.find("cputune/emulatorpin")
    return IoDefinition(
        None if pin is None else parse_cpuset(pin.get("cpuset") or ""),
        {
            int(e.get("iothread") or -1): parse_cpuset(e.get("cpuset") or "")
            for e in root.iterfind("cputune/iothreadpin")
        },
        tuple(
            _interface(e) for e in root.iterfind("devices/interface") if e.get("type") not in OTHERS
        ),
    )


def _interface(element: ET.Element) -> InterfaceXml:
    target = element.find("target")
    return InterfaceXml(
        None if target is None else target.get("dev"),
        element.get("type") == "direct",
        _limit(element, "inbound"),
        _limit(element, "outbound"),
    )


def _limit(element: ET.Element, direction: str) -> float | None:
    found = element.find(f"bandwidth/{direction}")
    average = None if found is None else found.get("average")
    return int(average) * _BYTES or None if average else None
