"""A scheduler worker that does nothing but receive host reports; says every second how it fares.

``python -m tests.benchmarks.report_worker NOVA_CONF NAME``: a line of JSON each time.
"""

import json
import re
import resource
import sys
import time

import nova.conf
import nova.rpc

from amp_nova.nova_plugins import options
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.report_server import ReportServer

_SENT_S = re.compile(r'"time_s":([0-9.e+]+)')


class Watched(HostStates):
    """Host states that note how long reports were under way."""

    def __init__(self, conf):
        super().__init__(conf)
        self.received, self.lags_s = 0, []

    def accept(self, text):
        """Take over a report; sender and receiver have the same clock here."""
        self.lags_s.append(time.time() - float(_SENT_S.search(text)[1]))
        self.received += 1
        return super().accept(text)


def main(path, name):
    conf = options.register(nova.conf.CONF)
    conf([], project="nova", default_config_files=[path], default_config_dirs=[])
    nova.rpc.init(conf)
    states = Watched(conf)
    ReportServer(states, name).start()
    while True:
        time.sleep(1.0)
        lags_s, states.lags_s = states.lags_s, []
        said = {
            "received": states.received,
            "hosts": len(states._entries),
            "lag_s": max(lags_s, default=0.0),
            "cpu_s": time.process_time(),
            "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "refused": sum(states.rejected.by_host.values()),
        }
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
