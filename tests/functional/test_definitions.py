# SPDX-License-Identifier: Apache-2.0
"""What the libvirt driver of this Nova writes into a domain's definition, as the agent reads it."""

import pytest
from nova import version
from nova.virt.libvirt import config

from amp_nova.cmd.upgrade import SPECS_SINCE
from amp_nova.host.libvirt.domain_xml import DomainXml, Fallback, parse

SPECS = {"amp:pref_core": "0.5", "hw:cpu_policy": "shared"}
PACKAGE = version.version_string()
SAYS = int(PACKAGE.partition(".")[0]) >= SPECS_SINCE


def written(*fallbacks: Fallback) -> DomainXml:
    """A server of the flavor m1.booked, named as Nova names its domains."""
    flavor = config.LibvirtConfigGuestMetaNovaFlavor()
    flavor.name, flavor.memory, flavor.disk, flavor.swap = "m1.booked", 64, 1, 0
    flavor.ephemeral, flavor.vcpus = 0, 2
    flavor.id, flavor.extra_specs = "42", SPECS  # as later releases have it
    owner = config.LibvirtConfigGuestMetaNovaOwner()
    owner.userid, owner.username, owner.projectid, owner.projectname = "u", "user", "p", "project"
    instance = config.LibvirtConfigGuestMetaNovaInstance()
    instance.package, instance.name, instance.flavor, instance.owner = PACKAGE, "web", flavor, owner
    instance.roottype, instance.rootid = "image", "8c1ff38b-6b2c-4f18-9b60-4f7a9f8e3d10"
    guest = config.LibvirtConfigGuest()
    guest.virt_type, guest.name, guest.vcpus = "kvm", "instance-0000002a", 2
    guest.uuid, guest.metadata = "4dfb7eee-0a1d-4c65-a8f9-3f5f9c1d2e33", [instance]
    return parse(guest.to_xml(), fallbacks)


def test_who_it_is():
    """Every release writes that."""
    domain = written().domain

    assert (domain.name, domain.display_name, domain.vcpus) == ("instance-0000002a", "web", 2)
    assert (domain.flavor, domain.project) == ("m1.booked", "p")
    assert domain.image == "8c1ff38b-6b2c-4f18-9b60-4f7a9f8e3d10"


@pytest.mark.parametrize("configured", [False, True])
def test_what_it_books(configured):
    """As the flavor says it, and before Nova 32 the agent's configuration; never unnoticed."""
    found = written(*[Fallback("m1.booked", {"amp:pref_core": "0.5"})] * configured)

    assert found.domain.specs.get("amp:pref_core") == ("0.5" if SAYS or configured else None)
    assert found.domain.booking_unknown == (not SAYS and not configured)
