# SPDX-License-Identifier: Apache-2.0
"""Finds instances by the names that an operator uses."""

import re

from amp_nova.exceptions import AmpError

RESERVED = re.compile(r"instance-[0-9a-f]{8}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Names that Nova gives to domains, and UUIDs. A tenant may choose such a display name, for example
that of an instance which has just left this host, so display names of this form are ignored."""


def resolve(instance: str, here: dict[str, tuple[str, str]]) -> str:
    """The UUID of an instance given by UUID, libvirt name or Nova name, in this order.

    ``here``: libvirt name and Nova name by UUID. Nova names come last because tenants choose them.
    Raises ``AmpError`` if the name is unknown or ambiguous.
    """
    if instance in here:
        return instance
    for position in (0, 1):
        if position and RESERVED.fullmatch(instance):
            break
        # The Nova name of a domain that is not Nova's is empty, and must not match.
        matches = [uuid for uuid, names in here.items() if "" != names[position] == instance]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise AmpError(f"several instances here are named '{instance}': give the UUID")
    raise AmpError(f"no instance '{instance}' on this host: 'amp-nova status' lists its instances")
