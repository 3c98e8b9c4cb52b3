"""What a domain's definition says of its I/O: pins of its threads, interfaces, bandwidth."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_nova.model.cpulist import parse_cpuset

OTHERS = frozenset({"hostdev", "vdpa", "vhostuser"})
"""Interfaces whose traffic no thread of the domain carries: it is none of its I/O work."""
_BYTES = 1000
"""libvirt gives bandwidth in kilobytes per second."""


@dataclass(frozen=True, slots=True)
class InterfaceXml:
    """One interface: its device on the host, ``None`` where there is none, and its limits.

    ``host_view``: the device counts as the guest does (macvtap), not the other way round (tap).
    """

    device: str | None
    host_view: bool = False
    in_limit_bytes_s: float | None = None
    out_limit_bytes_s: float | None = None


@dataclass(frozen=True, slots=True)
class IoDefinition:
    """Pins (``None``: none of its own) and interfaces of one domain."""

    emulator: frozenset[int] | None = None
    iothreads: Mapping[int, frozenset[int]] = field(default_factory=dict)
    interfaces: tuple[InterfaceXml, ...] = ()
    problem: str | None = None
    """Why it cannot be read: then the domain's I/O is left alone, and nothing else is."""


def parse(root: ET.Element) -> IoDefinition:
    """The I/O part of a domain's XML."""
    try:
        return _parse(root)
    except ValueError as exc:
        return IoDefinition(problem=f"its pins or interfaces cannot be read: {exc}")


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
