# SPDX-License-Identifier: Apache-2.0
"""Connects agents and scheduler workers to their message bus."""

from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg

RETRY_S = 2.0
"""Pause before a bus that is away is tried again."""


def transport(conf: cfg.ConfigOpts, address: str = "") -> Any:
    """The bus at an address, else the configured one; it connects when it is first used.

    The driver's own pauses between two attempts grow to 30 s while a broker is down.
    """
    url = messaging.TransportURL.parse(conf, address or None)
    if url.transport == "rabbit":
        url.query.setdefault("rabbit_interval_max", f"{RETRY_S:g}")
    return messaging.get_rpc_transport(conf, url)
