# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus that has scraped agents, for the services that read it."""

import http.server
import threading
import time

import pytest

from tests.integration.test_dashboards import scraping
from tests.support.lab import until

PERIOD_S = 10
HOSTILE = """\
amp_instance_cpu_seconds_total{{resource="web-0",project="5ac0ffee",core_type="fast"}} {0}
amp_instance_reference_cpu_seconds_total{{resource="web-0",project="5ac0ffee"}} {0}
amp_instance_booked_refcores{{resource="web-0",project="5ac0ffee"}} 99
openstack_nova_server_status{{id="web-0",tenant_id="5ac0ffee",hypervisor_hostname="compute-0.a"}} 0
openstack_nova_server_status{{id="db",tenant_id="5ac0ffee",hypervisor_hostname="compute-1.a"}} 0
"""
"""A host that exports a server that is elsewhere; and Nova's word, as openstack-exporter has it."""


class Exporter(http.server.BaseHTTPRequestHandler):
    """Answers with that, and a figure that grows."""

    def do_GET(self):
        """Answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(HOSTILE.format(1000.0 * time.time()).encode())

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory):
    """It has scraped all agents for longer than ``PERIOD_S``, and has minutes that were missed."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with scraping(tmp_path_factory, other.server_port) as found:
            missed = f'rate(amp_instance_delivered_ratio_bucket{{le="0.95"}}[{PERIOD_S}s]) > 0'
            until(lambda: found.series(missed), 60, "a missed minute")
            until(lambda: found.series("resource:amp_cpu_cores:rate5m"), 60, "what is charged")
            time.sleep(PERIOD_S)
            yield found
        other.shutdown()
