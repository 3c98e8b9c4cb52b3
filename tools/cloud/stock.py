# SPDX-License-Identifier: Apache-2.0
"""What a new cloud offers its users: an image, flavors, and commands to try."""

from concurrent.futures import ThreadPoolExecutor

from amp_nova.host.calibration import file
from tools.cloud import configuration, counting
from tools.cloud.client import Cloud, openstack
from tools.cloud.configuration import FLAVORS
from tools.cloud.layout import CORES, ETC, SLOW, STATE
from tools.cloud.processes import until

IMAGE = "counting"
BOOTS = "\n    ".join(
    f"openstack server create --flavor {name} --image {IMAGE} --nic none --wait my-{name}"
    for name, specs in FLAVORS.items()
    if specs
)
KIND = "one with a fast core and one with a slow core" if CORES == 1 else f"of {CORES} cores each"
WELCOME = f"""
A cloud of two hosts, {KIND}. Try:

    . {STATE}/openrc
    openstack amp capacity list
    {BOOTS}
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
    """Upload the image and make the flavors; bookings are set as an operator would."""
    cloud = Cloud()
    cloud.image(counting.FOLDER)
    reference = ("--reference-ips", f"{reference_ips() / 1e6:.0f}M") if CORES == 1 else ()
    make = cloud.sdk.compute.create_flavor
    ids = {name: make(name=name, vcpus=1, ram=16, disk=0).id for name in FLAVORS}
    configuration.write(ETC / "tempest.conf", configuration.tempest(ids["best-effort"]))
    with ThreadPoolExecutor() as pool:
        booked = [(name, specs, *reference) for name, specs in FLAVORS.items() if specs]
        list(pool.map(lambda words: openstack("amp", "flavor", "set", *words), booked))
    hosts = cloud.sdk.placement.resource_providers
    until(lambda: sum("_amp_" in p.name for p in hosts()) == 2, "the agents' providers", 60)
