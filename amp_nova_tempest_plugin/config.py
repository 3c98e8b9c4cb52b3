# SPDX-License-Identifier: Apache-2.0
"""``[amp_nova]`` in tempest.conf."""

from oslo_config import cfg

GROUP = cfg.OptGroup("amp_nova", title="amp-nova")
OPTIONS = [
    cfg.URIOpt(
        "prometheus_url",
        schemes=["http", "https"],
        help="Prometheus that scrapes the agents, such as http://controller:9090. Without it only "
        "extra specs are tested. Agents have to export instances: [exporter] detail = instance "
        "or vcpu.",
    ),
    cfg.StrOpt(
        "image_ref",
        help="Image of the servers. By default the tests upload one of 1 MiB, for x86 with BIOS, "
        "whose boot sector loops.",
    ),
    cfg.BoolOpt(
        "image_busy",
        default=True,
        help="Whether guests of the image keep their vCPU busy all the time. If not, what they "
        "receive is not tested.",
    ),
    cfg.FloatOpt(
        "refcores",
        default=0.5,
        min=0.01,
        max=100,
        help="Reference cores that a server books, in steps of 0.001. At least two hosts must have "
        "that much left, if servers are moved.",
    ),
    cfg.FloatOpt(
        "tolerance",
        default=0.1,
        min=0,
        max=1,
        help="How much more or less than its booking a busy server may receive, as a share of it.",
    ),
    cfg.IntOpt(
        "window",
        default=60,
        min=5,
        help="Seconds over which that is measured; at least four of Prometheus' scrape intervals.",
    ),
    cfg.BoolOpt(
        "claims",
        default=True,
        help="Whether the agents offer capacity in Placement ([placement] enabled), so that "
        "flavors can claim it.",
    ),
]
