# SPDX-License-Identifier: Apache-2.0
"""``[vendordata]``: what ``amp-nova-vendordata`` tells servers and their owners."""

from oslo_config import cfg

GROUP = "vendordata"

OPTS: list[cfg.Opt] = [
    cfg.HostAddressOpt(
        "address",
        default="127.0.0.1",
        help="""
Address that ``amp-nova-vendordata`` listens on. Requests carry tokens: on any other address, put a
proxy with TLS in front of it.
""",
    ),
    cfg.PortOpt("port", default=9179, help="Port that ``amp-nova-vendordata`` listens on."),
    cfg.URIOpt(
        "prometheus_url",
        default="http://127.0.0.1:9090",
        schemes=["http", "https"],
        secret=True,
        help="Prometheus that scrapes the agents, such as https://USER:PASSWORD@HOST:PORT.",
    ),
    cfg.StrOpt(
        "role",
        default="service",
        regex=r"^[^\s,]+$",
        help="""
Role of the user in Nova's ``[vendordata_dynamic_auth]``. Whoever has it can ask about every server,
so no tenant may have it.
""",
    ),
]
