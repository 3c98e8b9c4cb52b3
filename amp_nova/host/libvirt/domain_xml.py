# SPDX-License-Identifier: Apache-2.0
"""The parts of a domain's XML that amp-nova needs: Nova's metadata, its I/O, and amp-nova's mark.

Quota, shares and pins that amp-nova sets through libvirt look like the domain's own, even to an
agent that starts later, and they travel with a live migration to a host where they may be wrong.
The mark in the domain's metadata travels with them, and says which of them amp-nova set.
"""

import fnmatch
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from amp_nova.exceptions import sentence
from amp_nova.flavor.extra_specs import NAMESPACE
from amp_nova.model import cpulist
from amp_nova.model.cpulist import parse_cpuset
from amp_nova.model.observation import Domain

NOVA = "{http://openstack.org/xmlns/libvirt/nova/1.1}"
"""Namespace of Nova's metadata."""
_ANY_NOVA = re.compile(r"http://openstack\.org/xmlns/libvirt/nova/[0-9]+\.[0-9]+")
"""Of any version: guests that Nova before 22.0 started have 1.0."""
VCPUS_MAX = 1 << 13
"""More vCPUs than any hypervisor supports: a greater count is garbage."""
OTHERS = frozenset({"hostdev", "vdpa", "vhostuser"})
"""Types of interfaces whose traffic is not carried by threads of the domain."""
_BYTES = 1000
"""libvirt states bandwidth in kilobytes per second."""
MARK_URI = "urn:amp-nova:tuning:1"
MARK_PREFIX = "amp"
PCpus = frozenset[int]


@dataclass(frozen=True, slots=True)
class Pin:
    """The pCPUs that amp-nova pinned a vCPU to, and its pin before (``None``: it had none)."""

    pcpus: PCpus
    before: PCpus | None


@dataclass(frozen=True, slots=True)
class Mark:
    """Whether the quota and the shares in a definition are amp-nova's, and which pins are."""

    quota: bool = False
    shares: bool = False
    pins: Mapping[int, Pin] = field(default_factory=dict)

    def original(self, pins: Mapping[int, PCpus]) -> dict[int, PCpus]:
        """The pins of a definition, with those that amp-nova set replaced by those before."""
        pins_before = {}
        for index, pcpus in pins.items():
            ours = self.pins.get(index)
            before = pcpus if ours is None or ours.pcpus != pcpus else ours.before
            if before is not None:
                pins_before[index] = before
        return pins_before

    def pinned(self, index: int, pcpus: PCpus, before: PCpus | None) -> "Mark":
        """A copy with one more pin; ``before``: the definition's pin without amp-nova."""
        return replace(self, pins={**self.pins, index: Pin(pcpus, before)})

    def xml(self) -> str:
        """The mark as an XML element."""
        root = ET.Element("tuning", quota=_yes(self.quota), shares=_yes(self.shares))
        for index, pin in sorted(self.pins.items()):
            about = {"vcpu": str(index), "cpuset": cpulist.show(pin.pcpus)}
            if pin.before is not None:
                about["before"] = cpulist.show(pin.before)
            ET.SubElement(root, "pin", about)
        return ET.tostring(root, encoding="unicode")


NO_MARK = Mark()


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


@dataclass(frozen=True, slots=True)
class Fallback:
    """A configured booking: extra specs for flavors or domains whose name matches a pattern."""

    pattern: str
    specs: dict[str, str]

    def matches(self, name: str) -> bool:
        """Whether the pattern is for this name, which a flavor or domain may not have."""
        return bool(name) and fnmatch.fnmatchcase(name, self.pattern)


@dataclass(frozen=True, slots=True)
class DomainXml:
    """A running domain as defined; ``pins`` are by vCPU, ``cpuset`` is for all other vCPUs.

    A ``cpuset`` of ``None`` is no restriction. Pins that amp-nova set (``mark``) are left out.
    ``emulated``: whether QEMU emulates the processor (``type='qemu'``).
    """

    domain: Domain
    cpuset: frozenset[int] | None
    pins: dict[int, frozenset[int]]
    io: IoDefinition = field(default_factory=IoDefinition)
    mark: Mark = NO_MARK
    emulated: bool = False


def _specs(root: ET.Element) -> dict[str, str]:
    path = f"metadata/{NOVA}instance/{NOVA}flavor/{NOVA}extraSpecs/{NOVA}extraSpec"
    return {name: e.text or "" for e in root.iterfind(path) if (name := e.get("name"))}


def _text(root: ET.Element, path: str, attribute: str | None = None) -> str:
    element = root.find(path)
    if element is None:
        return ""
    return (element.get(attribute) if attribute else element.text) or ""


def _without_specs(root: ET.Element) -> bool:
    """Whether Nova started a domain before 32.0, whose flavors all have this element."""
    flavor = root.find(f"metadata/{NOVA}instance/{NOVA}flavor")
    return flavor is not None and flavor.find(f"{NOVA}extraSpecs") is None


def _limited(root: ET.Element) -> bool:
    """Whether the definition has a vCPU quota, which then belongs to libvirt."""
    text = _text(root, "cputune/quota").strip() or "-1"
    return not text.startswith("-") and text != "0"


def _unplugged(root: ET.Element, count: int) -> frozenset[int]:
    """vCPUs that may be plugged later: libvirt names them, or says how many there are now."""
    named = {v.get("id", ""): v.get("enabled") for v in root.iterfind("vcpus/vcpu")}
    current = _text(root, "vcpu", "current").strip()
    if not named and current.isdecimal() and len(current) <= 6:
        return frozenset(range(int(current), count))
    return frozenset(i for i in range(count) if named.get(str(i)) == "no")


def parse(xml: str, fallbacks: Sequence[Fallback] = ()) -> DomainXml:
    """Parse a domain's XML; ``ValueError`` if it is malformed."""
    try:
        root = ET.fromstring(_ANY_NOVA.sub(NOVA[1:-1], xml))
    except ET.ParseError as exc:
        raise ValueError(f"not XML: {exc}") from exc
    name, uuid, count = _text(root, "name"), _text(root, "uuid"), _text(root, "vcpu").strip()
    if not name or not uuid:
        raise ValueError("it has no name or no UUID")
    if not count.isdecimal() or len(count) > 6 or not 0 < int(count) <= VCPUS_MAX:
        raise ValueError(f"'{count[:20]}' is not a number of vCPUs")
    instance = f"metadata/{NOVA}instance"
    flavor = _text(root, f"{instance}/{NOVA}flavor", "name")
    specs, unknown = _specs(root), _without_specs(root)
    if not any(key.startswith(f"{NAMESPACE}:") for key in specs):
        named = [f for f in fallbacks if f.matches(flavor) or f.matches(name)]
        specs, unknown = (specs | named[0].specs, False) if named else (specs, unknown)
    ours = read_mark(root.find(f"metadata/{{{MARK_URI}}}tuning"))
    domain = Domain(
        resource=uuid,
        name=name,
        vcpus=int(count),
        specs=specs,
        project=_text(root, f"{instance}/{NOVA}owner/{NOVA}project", "uuid"),
        display_name=_text(root, f"{instance}/{NOVA}name"),
        flavor=flavor,
        flavor_id=_text(root, f"{instance}/{NOVA}flavor", "id"),
        image=_text(root, f"{instance}/{NOVA}root[@type='image']", "uuid"),
        limited_elsewhere=_limited(root) and not ours.quota,
        weighted_elsewhere=root.find("cputune/shares") is not None and not ours.shares,
        unplugged=_unplugged(root, int(count)),
        booking_unknown=unknown,
    )
    cpuset = _text(root, "vcpu", "cpuset")
    pins = {
        int(pin.get("vcpu") or -1): parse_cpuset(pin.get("cpuset") or "")
        for pin in root.iterfind("cputune/vcpupin")
    }
    io, pins = _io(root), ours.original(pins)
    usable, emulated = parse_cpuset(cpuset) if cpuset else None, root.get("type") == "qemu"
    return DomainXml(domain, usable, pins, io, ours, emulated)


def read_mark(tuning: ET.Element | None) -> Mark:
    """The mark of an element, with or without its namespace; an unreadable one counts as none."""
    if tuning is None:
        return NO_MARK
    try:
        pins = {}
        for pin in (e for e in tuning if e.tag.rpartition("}")[2] == "pin"):
            index, before = int(pin.get("vcpu", "")), pin.get("before")
            if not 0 <= index < VCPUS_MAX:
                raise ValueError(index)
            pcpus = parse_cpuset(pin.get("cpuset", ""))
            pins[index] = Pin(pcpus, None if before is None else parse_cpuset(before))
    except ValueError:
        return NO_MARK
    return Mark(tuning.get("quota") == "yes", tuning.get("shares") == "yes", pins)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _io(root: ET.Element) -> IoDefinition:
    """The I/O part of a domain's XML."""
    pin, interfaces = root.find("cputune/emulatorpin"), root.iterfind("devices/interface")
    try:
        return IoDefinition(
            None if pin is None else parse_cpuset(pin.get("cpuset") or ""),
            {
                int(e.get("iothread") or -1): parse_cpuset(e.get("cpuset") or "")
                for e in root.iterfind("cputune/iothreadpin")
            },
            tuple(_interface(e) for e in interfaces if e.get("type") not in OTHERS),
        )
    except ValueError as exc:
        return IoDefinition(problem=sentence(f"its pins or interfaces cannot be read: {exc}"))


def _interface(element: ET.Element) -> InterfaceXml:
    target = element.find("target")
    return InterfaceXml(
        None if target is None else target.get("dev"),
        element.get("type") == "direct",
        _limit_bytes_s(element, "inbound"),
        _limit_bytes_s(element, "outbound"),
    )


def _limit_bytes_s(element: ET.Element, direction: str) -> float | None:
    limits = element.find(f"bandwidth/{direction}")
    average = None if limits is None else limits.get("average")
    return int(average) * _BYTES or None if average else None
