# SPDX-License-Identifier: Apache-2.0
"""The lease, the guard and the records in every interleaving.

The number of states and the trace to each fault are printed; ``AMP_NOVA_MODEL_EVENTS=4`` lets more
happen.
"""

import os

from tests.model.lease_model import explore

EVENTS = int(os.environ.get("AMP_NOVA_MODEL_EVENTS", "3"))


def test_the_protocol_keeps_every_promise():
    """Whatever is stopped, killed, restarted, moved, paused or unlinked, and whenever."""
    found = explore(EVENTS)

    print(f"{len(found.came)} states with at most {EVENTS} events")
    for fault, state in found.faults.items():
        print(f"{fault}\n  " + "\n  ".join(found.trace(state)))
    assert found.faults == {}
    assert len(found.came) > 100_000
