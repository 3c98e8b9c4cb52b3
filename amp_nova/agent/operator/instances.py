"""Instances by the names an operator knows them by."""

from amp_nova.exceptions import AmpError


def resolve(instance: str, here: dict[str, tuple[str, str]]) -> str:
    """The UUID of an instance given by UUID, libvirt name or Nova name; ``AmpError`` if unknown.

    ``here``: libvirt name and Nova name by UUID.
    """
    if instance in here:
        return instance
    for position in (0, 1):
        # Instances that are not Nova's have an empty name there, which names none of them.
        found = [uuid for uuid, names in here.items() if "" != names[position] == instance]
        if len(found) == 1:
            return found[0]
        if found:
            raise AmpError(f"several instances here are named '{instance}': give the UUID")
    raise AmpError(f"no instance '{instance}' on this host: 'amp-nova status' lists those that are")
