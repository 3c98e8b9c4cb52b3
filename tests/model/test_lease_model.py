"""The lease, the guard and the records in every interleaving.

The number of states and the trace to each fault are printed; ``AMP_NOVA_MODEL_EVENTS=4`` lets more
happen.
"""

import os

import pytest

from tests.model.lease_model import EVERYTHING, explore

EVENTS = int(os.environ.get("AMP_NOVA_MODEL_EVENTS", "3"))
RELEASED = frozenset({"release", "kill agent", "the agent is slow", "decide", "stop guard"})


@pytest.mark.parametrize(
    ("happens", "least"),
    [(EVERYTHING - {"release"}, 100_000), (RELEASED, 1_000)],
    ids=["without a release", "with a release, whose lock the guard does not wait for"],
)
def test_the_protocol_keeps_every_promise(happens, least):
    """Whatever is stopped, killed, restarted, moved, paused or unlinked, and whenever."""
    found = explore(happens, EVENTS)

    print(f"{len(found.came)} states with at most {EVENTS} events")
    for fault, state in found.faults.items():
        print(f"{fault}\n  " + "\n  ".join(found.trace(state)))
    assert found.faults == {}
    assert len(found.came) > least
