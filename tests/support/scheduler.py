# SPDX-License-Identifier: Apache-2.0
"""A scheduler's end of the bus, for tests: receives what agents report."""

import math
from collections import Counter

import oslo_messaging as messaging
from oslo_config import cfg

from amp_nova.nova_plugins import options
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.wire import topics
from amp_nova.wire.encoding import decode


def alone(server):
    """Make a worker of Nova's scheduler decide although no thread of it runs: on no bus, and sure
    that Nova has nothing under way."""
    server.start = server.wait_until_ready = lambda *_hosts: None
    server.states.knows, server.refresh = (lambda _host: True), (lambda: False)


class Scheduler:
    """A scheduler's end of the bus, with its memory of hosts."""

    target = messaging.Target(namespace=topics.NAMESPACE, version=topics.RPC_VERSION)

    def __init__(self, url: str) -> None:
        conf = options.register(cfg.CONF)  # oslo.messaging keeps options of its own there
        conf([], project="amp-nova", default_config_files=[], default_config_dirs=[])
        self.states, self.reports = HostStates(conf), Counter[str]()
        target = messaging.Target(exchange=topics.EXCHANGE, topic=topics.SCHEDULERS, server="soak")
        self.server = messaging.get_rpc_server(
            messaging.get_rpc_transport(conf, url=url),
            target,
            [self],
            access_policy=messaging.DefaultRPCAccessPolicy,
        )
        self.server.start()

    def report(self, _context: object, snapshot: str) -> None:
        """Receive a report."""
        if self.states.accept(snapshot):
            self.reports[decode(snapshot).origin.node] += 1

    def listens(self, _context: object) -> None:
        """Answer an agent that asks."""

    def close(self) -> None:
        """Stop listening, before the broker ends: an answer to nobody would be sent for ever."""
        self.server.stop()
        self.server.wait()

    def forget_ended(self, node: str) -> None:
        """What a scheduler learns from Nova: that instances which are gone will not come back."""
        if (entry := self.states.entry(node)) is not None:
            self.states.follow(dict.fromkeys(entry.pending), math.inf)
