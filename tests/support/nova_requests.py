# SPDX-License-Identifier: Apache-2.0
"""Requests for an instance as Nova's scheduler gets them."""

import uuid

from nova import context, objects

NOTHING = (
    "availability_zone",
    "instance_group",
    "requested_destination",
    "limits",
    "retry",
    "ignore_hosts",
    "force_hosts",
    "force_nodes",
    "numa_topology",
)
"""What a plain request does not ask for."""


def flavor(specs, vcpus, **fields):
    """A flavor that no database has; ``specs`` are its extra specs."""
    size = {"memory_mb": 512, "root_gb": 0, "ephemeral_gb": 0, "swap": 0}
    made = {"name": "f", "flavorid": "f", "vcpus": vcpus, "extra_specs": specs, **size, **fields}
    return objects.Flavor(**made)


def request_spec(wanted, **fields):
    """A request for one instance of a flavor."""
    usual = {
        "instance_uuid": str(uuid.uuid4()),
        "image": objects.ImageMeta(properties=objects.ImageMetaProps()),
        "project_id": "project",
        "user_id": "user",
        "num_instances": 1,
        "is_bfv": False,
        "pci_requests": objects.InstancePCIRequests(requests=[]),
        "scheduler_hints": {},
        "security_groups": objects.SecurityGroupList(objects=[]),
        "requested_resources": [],
        "request_level_params": objects.RequestLevelParams(),
    }
    made = {**dict.fromkeys(NOTHING), **usual, **fields}
    return objects.RequestSpec(context.get_admin_context(), flavor=wanted, **made)
