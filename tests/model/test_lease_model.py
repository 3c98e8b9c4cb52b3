"""The lease, the guard and the records in every interleaving: what the old protocol lost, and when.

Every figure and every trace is printed; ``AMP_NOVA_MODEL_EVENTS=4`` lets more happen.
"""

import os
from dataclasses import replace

import pytest

from tests.model.lease_model import EVERYTHING, NEW, OLD, Explored, Protocol, explore

EVENTS = int(os.environ.get("AMP_NOVA_MODEL_EVENTS", "3"))
LOST = "2: the booking is lost for good"
STALE = "4: it writes by what it saw before its lease was lost"
UNRECORDED = "5: a change that no record undoes"
TWO_WRITERS = "6: two writers: the agent goes on after its lease was lost"
STOPPED = frozenset({"stop agent", "kill agent", "decide"})
REPINNED = frozenset({"repin to F", "repin to S", "kill agent"})
RETURNED = frozenset({"migrate away", "migrate back", "the agent is slow"})
RELEASED = frozenset({"release", "kill agent", "the agent is slow", "decide", "stop guard"})


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
    found = explored("the protocol", NEW, EVERYTHING - {"release"})

    assert found.faults == {}
    assert len(found.came) > 100_000


def test_what_is_released_stays_released():
    """Although the guard does not wait for the lock that ``amp-nova release`` has."""
    assert explored("the protocol, with a release", NEW, RELEASED).faults == {}


def test_an_agent_that_is_resumed_after_the_guard_acted_left_its_write_in_force():
    """First counter-example: the guard had acted, and would not act again."""
    found = explored("the old protocol, stopped", OLD, STOPPED)

    trace = found.trace(found.faults[LOST])
    assert trace.index("SIGCONT to the agent") > trace.index("guard: finds it safe")
    assert trace[-3:] == [
        "agent: writes ('limit', 'F')",
        "kill agent",
        "-> S with the limit of F",
    ]
    assert TWO_WRITERS in found.faults


def test_a_vcpu_that_is_repinned_before_the_guard_writes_kept_the_other_limit():
    """Second counter-example: half its booking, until an agent comes back."""
    found = explored("the old protocol, repinned", OLD, REPINNED)

    trace = found.trace(found.faults[LOST])
    assert trace[-4:] == [
        "guard: reads what is in force",
        "repin to S",
        "guard: writes ('limit', 'F')",
        "-> S with the limit of F",
    ]


@pytest.mark.parametrize(
    ("part", "happens", "fault"),
    [
        ("check", STOPPED, TWO_WRITERS),
        ("adopt", STOPPED, STALE),
        ("repair", REPINNED, LOST),
        ("keep", RETURNED, UNRECORDED),
        ("ask", RELEASED - {"the agent is slow"}, LOST),
    ],
)
def test_each_part_of_the_protocol_is_needed(part, happens, fault):
    """Without it a promise is broken, so the model would notice its loss."""
    without = replace(NEW, **{part: False})

    assert fault in explored(f"without {part}", without, happens, until=fault).faults


def test_what_the_guard_reads_again_only_saves_time():
    """The next poll would repair the limit as well, a second later."""
    assert explored("without reread", replace(NEW, reread=False), REPINNED).faults == {}
