"""CPU lists as libvirt writes them."""

from amp_nova.model import cpulist


def cpus(text: str) -> frozenset[int]:
    """A libvirt cpuset such as ``0-3,^2,8``; ``ValueError`` if it is none."""
    parts = text.replace(" ", "").split(",")
    excluded = [part[1:] for part in parts if part.startswith("^")]
    included = [part for part in parts if not part.startswith("^")]
    if "" in parts or "" in excluded:
        raise ValueError(f"'{text}' is not a cpuset")
    return frozenset(cpulist.parse(",".join(included))) - set(cpulist.parse(",".join(excluded)))
