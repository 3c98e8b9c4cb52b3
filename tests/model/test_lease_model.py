"""The lease, the guard and the records in every interleaving, and what each part is for.

Every figure and every trace is printed; ``AMP_NOVA_MODEL_EVENTS=4`` lets more happen.
"""

import os

import pytest

from tests.model.lease_model import EVERYTHING, Explored, Protocol, explore

EVENTS = int(os.environ.get("AMP_NOVA_MODEL_EVENTS", "3"))
LOST = "2: the booking is lost for good"
STALE = "4: it writes by what it saw before its lease was lost"
UNRECORDED = "5: a change that no record undoes"
TWO_WRITERS = "6: two writers: the agent goes on after its lease was lost"
STOPPED = frozenset({"stop agent", "kill agent", "decide"})
REPINNED = frozenset({"repin to F", "repin to S", "kill agent"})
RETURNED = frozenset({"migrate away", "migrate back", "the agent is slow"})
RELEASED = frozenset({"release", "kill agent", "the agent is slow", "decide", "stop guard"})
NEEDED = [
    ("check", STOPPED, TWO_WRITERS),
    ("adopt", STOPPED, STALE),
    ("repair", REPINNED, LOST),
    ("keep", RETURNED, UNRECORDED),
    ("ask", RELEASED - {"the agent is slow"}, LOST),
]
"""The parts of the protocol, and the promise that is broken without each if this may happen."""


def explored(
    name: str, protocol: Protocol, happens: frozenset[str] = EVERYTHING, until: str = ""
) -> Explored:
    """All states, or those until a promise is broken, and what is printed of them."""
    found = explore(protocol, happens, EVENTS, until)
    print(f"{name}: {len(found.came)} states with at most {EVENTS} events")
    for fault, state in found.faults.items():
        print(f"  {fault}\n    " + "\n    ".join(found.trace(state)))
    return found


def test_the_protocol_keeps_every_promise():
    """Whatever is stopped, killed, restarted, moved, paused or unlinked, and whenever."""
    found = explored("the protocol", Protocol(), EVERYTHING - {"release"})

    assert found.faults == {}
    assert len(found.came) > 100_000


def test_what_is_released_stays_released():
    """Although the guard does not wait for the lock that ``amp-nova release`` has."""
    assert explored("the protocol, with a release", Protocol(), RELEASED).faults == {}


@pytest.mark.parametrize(("part", "happens", "fault"), NEEDED)
def test_each_part_of_the_protocol_is_needed(part, happens, fault):
    """Without it a promise is broken, so the model would notice its loss."""
    without = Protocol(**{part: False})

    assert fault in explored(f"without {part}", without, happens, until=fault).faults
