"""The parts of a domain's XML that amp-nova needs, including Nova's metadata."""

import fnmatch
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field

from amp_nova.flavor.extra_specs import NAMESPACE
from amp_nova.host.libvirt import io_definition, mark
from amp_nova.host.libvirt.io_definition import IoDefinition
from amp_nova.host.libvirt.mark import NO_MARK, Mark
from amp_nova.model.cpulist import parse_cpuset
from amp_nova.model.observation import Domain

NOVA = "{http://openstack.org/xmlns/libvirt/nova/1.1}"
"""Namespace of Nova's metadata, which includes the flavor's extra specs since Nova 32.0."""
VCPUS_MAX = 1 << 13
"""More vCPUs than any hypervisor supports: a greater count is garbage."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """A configured booking: extra specs for domains whose name matches a shell pattern."""

    pattern: str
    specs: dict[str, str]


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


def _limited(root: ET.Element) -> bool:
    """Whether the definition has a vCPU quota, which then belongs to libvirt."""
    text = _text(root, "cputune/quota").strip() or "-1"
    return not text.startswith("-") and text != "0"


def parse(xml: str, fallbacks: Sequence[Fallback] = ()) -> DomainXml:
    """Parse a domain's XML; ``ValueError`` if it is malformed."""
    try:
        root = ET.fromstring(xml)
    except ET.ParseError as exc:
        raise ValueError(f"not XML: {exc}") from exc
    name, uuid, count = _text(root, "name"), _text(root, "uuid"), _text(root, "vcpu").strip()
    if not name or not uuid:
        raise ValueError("it has no name or no UUID")
    if not count.isdecimal() or len(count) > 6 or not 0 < int(count) <= VCPUS_MAX:
        raise ValueError(f"'{count[:20]}' is not a number of vCPUs")
    specs = _specs(root)
    if not any(key.startswith(f"{NAMESPACE}:") for key in specs):
        for fallback in fallbacks:
            if fnmatch.fnmatchcase(name, fallback.pattern):
                specs = {**specs, **fallback.specs}
                break
    ours = mark.read(root)
    instance = f"metadata/{NOVA}instance"
    domain = Domain(
        resource=uuid,
        name=name,
        vcpus=int(count),
        specs=specs,
        project=_text(root, f"{instance}/{NOVA}owner/{NOVA}project", "uuid"),
        display_name=_text(root, f"{instance}/{NOVA}name"),
        flavor=_text(root, f"{instance}/{NOVA}flavor", "name"),
        flavor_id=_text(root, f"{instance}/{NOVA}flavor", "id"),
        image=_text(root, f"{instance}/{NOVA}root[@type='image']", "uuid"),
        limited_elsewhere=_limited(root) and not ours.quota,
        weighted_elsewhere=root.find("cputune/shares") is not None and not ours.shares,
    )
    cpuset = _text(root, "vcpu", "cpuset")
    pins = {
        int(pin.get("vcpu") or -1): parse_cpuset(pin.get("cpuset") or "")
        for pin in root.iterfind("cputune/vcpupin")
    }
    io, pins = io_definition.parse(root), ours.original(pins)
    usable, emulated = parse_cpuset(cpuset) if cpuset else None, root.get("type") == "qemu"
    return DomainXml(domain, usable, pins, io, ours, emulated)
