# SPDX-License-Identifier: Apache-2.0
"""Random operations, held anywhere, with workers that restart: nothing is over-booked or lost.

``AMP_NOVA_SEED=7 AMP_NOVA_WALK_STEPS=1000 python -m pytest -s -o timeout=0
tests/functional/test_random_walk.py`` repeats one walk, or takes a long one.
"""

import os
import random
from typing import ClassVar

import fixtures

from tests.functional.cloud import CloudTestCase
from tests.functional.random_walk import Walk
from tests.support.hosts import smt_host

STEPS = int(os.environ.get("AMP_NOVA_WALK_STEPS", "30"))
SEED = int(os.environ.get("AMP_NOVA_SEED") or random.randrange(1 << 31))


class RandomWalkTest(CloudTestCase):
    """Five hosts: two with one slow kind of core, one with two kinds, one with SMT, one tiny."""

    HOSTS: ClassVar = {
        "host1": {"slow": (2, 1.0)},
        "host2": {"slow": (2, 1.0), "fast": (1, 2.0)},
        "host3": smt_host(2),
        "host4": {"slow": (1, 1.0)},
        "host5": {"slow": (3, 1.0)},
    }
    WORKERS = 2

    def setUp(self):
        # Agents report at once, so that many steps fit into a minute.
        gap_s = "amp_nova.agent.publish.host_reports.GAP_LEAST_S"
        self.useFixture(fixtures.MonkeyPatch(gap_s, 0.0))
        # A busy machine may take long, which is no reason to refuse anything.
        for name in ("report_server.READY_S", "decisions.ECHO_S"):
            self.useFixture(fixtures.MonkeyPatch(f"amp_nova.nova_plugins.{name}", 50.0))
        super().setUp()

    def test_nothing_is_over_booked_refused_for_nothing_or_lost(self):
        """By exact packing; see ``random_walk``."""
        self.flags(instances=-1, cores=-1, ram=-1, group="quota")
        self.flags(allow_resize_to_same_host=True, max_concurrent_live_migrations=50)
        self.flags(stale_after_s=36000.0, group="amp_scheduler")
        walk = Walk(self, SEED)
        print(f"\nAMP_NOVA_SEED={SEED}")
        try:
            walk.walk(STEPS)
        finally:
            print(walk.summary())
        assert walk.faults == [], f"AMP_NOVA_SEED={SEED}: {walk.faults}"
