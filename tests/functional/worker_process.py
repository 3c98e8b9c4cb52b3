# SPDX-License-Identifier: Apache-2.0
"""A scheduler worker's process that loads the filter and works, over the bus within a process.

``python -m tests.functional.worker_process HOW``: as the process that loaded it (``here``), as its
``fork``, as a process that ``spawn`` starts, or with a Nova that has lost what it may lose when it
drops eventlet (``later``).
"""

import functools
import multiprocessing
import os
import sys
import threading
import time
from typing import Any
from unittest import mock

import nova.conf
import nova.utils
import oslo_messaging as messaging

from amp_nova import message_bus
from amp_nova.agent.publish.host_reports import MessageBus
from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.filters import AmpCapacityFilter
from amp_nova.nova_plugins.host_entry import Query
from amp_nova.nova_plugins.nova_records import Placement
from amp_nova.wire.encoding import encode
from tests.support.host_reports import host_report, request
from tests.support.programs import until

WAIT_S = 60.0
NODES = {"resource_providers": [{"uuid": "uuid1", "name": "host1"}]}


def load() -> AmpCapacityFilter:
    """What nova-scheduler does before it starts its workers; no thread may run by then."""
    conf = nova.conf.CONF
    conf([], project="nova", default_config_files=[], default_config_dirs=[])
    messaging.TransportURL.parse(conf)  # which registers the option
    conf.set_override("transport_url", "fake://")
    threads = threading.active_count()
    loaded = AmpCapacityFilter()
    assert threading.active_count() == threads
    return loaded


def work(loaded: AmpCapacityFilter) -> None:
    """The first request, the first report, and a decision that comes back."""
    server: Any = loaded._server
    server.start()
    bus = MessageBus(message_bus.transport(nova.conf.CONF), "host1")
    bus.listen(lambda: bus.send(encode(host_report(time_s=time.time()))))
    until(lambda: server.decisions._cast is not None, WAIT_S, "the worker's own bus")
    bus.send(encode(host_report(time_s=time.time())))
    until(lambda: server.states.entry("host1"), WAIT_S, "a report")
    assert server.decisions.reserve("host1", Query("a", request(pref_core=1)))
    assert server.states.entry("host1").pending.keys() == {"a"}
    assert server.decisions._patience_s, "its message came back"


def load_and_work() -> None:
    """All of it."""
    work(load())


def main(how: str) -> None:
    """Exit with 0 if it worked."""
    if how == "later":
        vars(nova.utils).pop("concurrency_mode_threading", None)
    if how == "spawn":
        process = multiprocessing.get_context("spawn").Process(target=load_and_work)
        process.start()
        process.join()
        assert process.exitcode == 0
        return
    loaded = load()
    if how == "fork":
        if (child := os.fork()) == 0:
            code = 1
            try:
                work(loaded)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    work(loaded)


# Also where it is imported by a process that was spawned.
report_server.Placement = functools.partial(Placement, lambda _path: NODES)
mock.patch.object(report_server.ReportServer, "follow_up").start()
if __name__ == "__main__":
    main(sys.argv[1])
