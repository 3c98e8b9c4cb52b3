"""amp-nova's mark in a domain's live definition: which of its CPU tuning amp-nova set.

Quota, shares and pins that are set through libvirt look like the domain's own, even to an agent
that starts later, and they travel with a live migration to a host where they may be wrong. The mark
travels with them. It is an element in the domain's metadata, in its own namespace.
"""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from amp_nova.model import cpulist

URI = "urn:amp-nova:tuning:1"
PREFIX = "amp"
_PINS_MAX = 1 << 13
PCpus = frozenset[int]


class Pin(NamedTuple):
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
        found = {}
        for index, pcpus in pins.items():
            ours = self.pins.get(index)
            before = pcpus if ours is None or ours.pcpus != pcpus else ours.before
            if before is not None:
                found[index] = before
        return found

    def pinned(self, index: int, pcpus: PCpus, before: PCpus | None) -> "Mark":
        """A copy with one more pin; ``before``: the definition's pin without amp-nova."""
        return replace(self, pins={**self.pins, index: Pin(pcpus, before)})

    def xml(self) -> str:
        """The mark as an XML element."""
        root = ET.Element("tuning", quota=_word(self.quota), shares=_word(self.shares))
        for index, pin in sorted(self.pins.items()):
            about = {"vcpu": str(index), "cpuset": cpulist.show(pin.pcpus)}
            if pin.before is not None:
                about["before"] = cpulist.show(pin.before)
            ET.SubElement(root, "pin", about)
        return ET.tostring(root, encoding="unicode")


NO_MARK = Mark()


def read(domain: ET.Element) -> Mark:
    """The mark in a domain's definition; an unreadable one counts as none."""
    root = domain.find(f"metadata/{{{URI}}}tuning")
    if root is None:
        return NO_MARK
    try:
        found = {}
        for pin in root.iterfind(f"{{{URI}}}pin"):
            index, before = int(pin.get("vcpu", "")), pin.get("before")
            if not 0 <= index < _PINS_MAX:
                raise ValueError(index)
            pcpus = cpulist.parse_cpuset(pin.get("cpuset", ""))
            found[index] = Pin(pcpus, None if before is None else cpulist.parse_cpuset(before))
    except ValueError:
        return NO_MARK
    return Mark(root.get("quota") == "yes", root.get("shares") == "yes", found)


def _word(value: bool) -> str:
    return "yes" if value else "no"
