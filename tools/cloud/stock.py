"""What a new cloud offers its users: an image, three flavors, and five commands to try."""

from amp_nova.host.calibration import file
from tools.cloud import counting
from tools.cloud.client import Cloud, openstack
from tools.cloud.layout import SLOW, STATE
from tools.cloud.processes import until

IMAGE = "counting"
IPS = "300M"
FLAVORS = {
    "half": ["amp:pref_core=0.5"],
    "instructions": [f"amp:ips={IPS}"],
    "best-effort": [],
}
WELCOME = f"""
A cloud of two hosts, one with a fast core and one with a slow core. Try:

    . {STATE}/openrc
    openstack amp capacity show
    openstack server create --flavor half --image {IMAGE} --nic none --wait one
    openstack server create --flavor instructions --image {IMAGE} --nic none --wait two
    openstack amp server list
    openstack amp host list
"""


def reference_ips() -> float:
    """What the reference core retires per second."""
    (calibration,) = file.read(SLOW.calibration)
    (core_type,) = calibration.core_types
    assert core_type.nominal_ips is not None
    return core_type.nominal_ips.value


def fill() -> None:
    """Upload the image and make the flavors, as an operator would."""
    cloud = Cloud()
    cloud.image(counting.FOLDER)
    reference = f"{reference_ips() / 1e6:.0f}M"
    for name, specs in FLAVORS.items():
        openstack("flavor", "create", name, "--vcpus", "1", "--ram", "16", "--disk", "0")
        if specs:
            openstack("amp", "flavor", "set", name, *specs, "--reference-ips", reference)
    hosts = cloud.sdk.placement.resource_providers
    until(lambda: sum("_amp_" in p.name for p in hosts()) == 2, "the agents' providers", 60)
