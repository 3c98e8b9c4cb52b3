# SPDX-License-Identifier: Apache-2.0
"""An explicit-state model of who writes a vCPU's limit and affinity: agent, guard and operator.

One vCPU that books half of what a core of the slow type S gives, on a host with the types F and S.
``RIGHT`` on F is half of ``RIGHT`` on S, so the limit of F on S halves the booking. Time is not
modelled: whatever lasts for a while may end at any moment, above all a lease. Each step of a
program is one system call or one decision, and anything may happen between two of them. What is to
be written, and in which order, is the product's own decision; ``test_replay.py`` takes the steps on
the real programs.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from amp_nova.guard import restore
from amp_nova.guard.record import RecordedVcpu, Tuning
from amp_nova.model.bandwidth import Bandwidth, SafeState

F, S, BOTH = "F", "S", "FS"
FREE = "-"
"""No limit. A limit is named by the core type on which it is right."""
PCPUS = {S: frozenset({0, 1}), F: frozenset({2, 3}), BOTH: frozenset(range(4))}
LIMITS = {S: Bandwidth(10_000, 20_000), F: Bandwidth(5_000, 20_000), FREE: None}
SAFE = {
    home: SafeState(PCPUS[home], tuple((PCPUS[x], LIMITS[x]) for x in (F, S))) for home in (F, S)
}
"""The safe state that the agent records, by the core type on which it wants the vCPU."""
GONE = 0
"""The incarnation of a domain that is not on this host."""
Write = tuple[str, str]
"""``("pcpus", F)`` or ``("limit", F)``."""


class Agent(Struct, frozen=True, cache_hash=True):
    """``at``: the next step; ``plan``: the writes to come; ``of``: the incarnation they are for.

    ``home``: where it has decided to have the vCPU, empty if it leaves it alone.
    """

    at: str = "take"
    stopped: bool = False
    of: int = GONE
    home: str = ""
    plan: tuple[Write, ...] = ()
    kept: str = ""
    """The home that it has recorded, or would have if the vCPU were not paused."""
    stale: bool = False
    """Whether it lost its lease since it read what it decides from."""


class Guard(Struct, frozen=True, cache_hash=True):
    """``of``, ``home``: the record it has read; ``wrote``: whether it wanted to write."""

    at: str = "poll"
    stopped: bool = False
    of: int = GONE
    home: str = S
    plan: tuple[Write, ...] = ()
    wrote: bool = False


class State(Struct, frozen=True, cache_hash=True):
    """The host. ``home``: where the agent wants the vCPU; ``record``: incarnation and home."""

    agent: Agent = Agent()
    guard: Guard = Guard()
    pcpus: str = BOTH
    limit: str = FREE
    domain: int = 1
    arrived: int = 1
    """How many incarnations of the domain there have been."""
    home: str = S
    record: tuple[int, str] = (GONE, S)
    touched: bool = False
    """Whether the agent has written to this incarnation."""
    paused: bool = False
    lock: str = ""
    valid: bool = False
    """What the guard reads at the path of the lease."""
    mine: bool = False
    """Whether the agent believes that it has a lease, and the file is still the one it has open."""
    late: int = 0
    """Writes by the agent since its lease was lost, up to 2."""
    events: int = 0
    """How many things have happened."""


Step = tuple[str, State]


def named(now: Tuning) -> tuple[str, str]:
    """Where a vCPU is, and its limit, as this model names them."""
    pcpus = next(name for name, there in PCPUS.items() if there == now.pcpus)
    return pcpus, next(name for name, limit in LIMITS.items() if limit == now.bandwidth)


@cache
def plan(pcpus: str, limit: str, home: str) -> tuple[Write, ...]:
    """The writes that bring a vCPU home, in the product's own order."""
    now, then = Tuning(LIMITS[limit], PCPUS[pcpus]), Tuning(LIMITS[home], PCPUS[home])
    places, limits = named(then)
    return tuple(
        ("limit", limits) if step.pcpus is None else ("pcpus", places)
        for step in restore.steps(now, then)
    )


@cache
def safe(pcpus: str, limit: str, home: str) -> tuple[Write, ...]:
    """What the product's guard writes."""
    now, found = Tuning(LIMITS[limit], PCPUS[pcpus]), Tuning(None, PCPUS[BOTH])
    recorded = RecordedVcpu("", "", "", 0, 2, PCPUS[BOTH], found, SAFE[home])
    return plan(pcpus, limit, named(restore.safe(recorded, now))[0])


def written(state: State, of: int, write: Write) -> State:
    """The kernel's answer: what is meant for a domain that is gone reaches nobody."""
    if of != state.domain:
        return state
    return replace(state, **{write[0]: write[1]})


def given(state: State) -> State:
    """The file at the path of the lease says that it is valid."""
    return replace(state, valid=True, late=0)


def lost(state: State) -> State:
    """The file at the path of the lease says that it has ended, or there is none."""
    return replace(state, valid=False, agent=replace(state.agent, stale=True))


def by_agent(state: State, write: Write) -> State:
    """After a write by the agent."""
    of = state.agent.of
    touched = state.touched or of == state.domain
    late = min(2, state.late + (not state.valid))
    return replace(written(state, of, write), late=late, touched=touched)


def agent_cycle(s: State) -> Iterator[Step]:
    """The agent between its writes: ``before``, ``cycle`` and ``after`` of the real one."""
    a, has = s.agent, s.mine and s.valid
    if a.at == "take":
        if a.home and not (s.lock or s.paused) and has:
            new = a.of == s.domain != s.record[0]
            record = (a.of, a.kept) if new else s.record
            locked = agent_at(s, "tick", lock="agent", record=record)
            yield "agent: a tick locks and checks", locked
        if has:
            yield "agent: begins a cycle", agent_at(s, "observe")
        elif not s.lock:  # one step: it has the lock, and the guard does not
            yield "agent: takes a lease", agent_at(given(s), "observe", mine=True)
    elif a.at == "observe":
        home = s.home if s.domain != GONE and not s.paused else ""
        todo = plan(s.pcpus, s.limit, home) if home else ()
        recorded = s.record == (s.domain, s.home)
        at = "lock" if todo else "record" if home and not recorded else "renew"
        kept = a.kept if todo or not home else home
        knows = replace(a, of=s.domain, home=home, plan=todo, kept=kept, stale=False)
        yield "agent: observes and decides", agent_at(replace(s, agent=knows), at)
    elif a.at == "record":
        at = "check" if s.lock == "agent" else "renew"
        yield "agent: records", agent_at(s, at, record=(a.of, a.home))
    elif a.at == "renew":
        at = "put" if has else "take"
        yield "agent: is about to renew its lease", agent_at(s, at)
    elif a.at == "put":
        # If it has ended just now, the guard may have acted.
        mine = s.mine and s.valid
        yield "agent: renews its lease", agent_at(given(s) if s.mine else s, "take", mine=mine)


def agent_writes(s: State) -> Iterator[Step]:
    """The agent's ``apply``, and a ``throttle`` between cycles."""
    a = s.agent
    if a.at == "lock" and not s.lock:
        yield "agent: locks", agent_at(s, "pauses", lock="agent")
    elif a.at == "pauses":
        todo = () if s.paused else a.plan
        left = replace(s, agent=replace(a, plan=todo, kept=a.home))
        # What is paused is not written, so it is only recorded if there is something new.
        recorded = s.record == (a.of, a.home) or (s.paused and a.kept == a.home)
        yield "agent: reads pauses", agent_at(left, "check" if recorded else "record")
    elif a.at == "check" and a.plan[:1] == (("limit", s.limit),):
        todo = replace(s, agent=replace(a, plan=a.plan[1:]))
        yield "agent: finds the limit in force", todo
    elif a.at == "check":
        fenced = not (s.mine and s.valid)
        yield "agent: checks its lease", agent_at(s, "write" if a.plan and not fenced else "unlock")
    elif a.at == "write":
        todo = replace(s, agent=replace(a, plan=a.plan[1:]))
        yield f"agent: writes {a.plan[0]}", agent_at(by_agent(todo, a.plan[0]), "check")
    elif a.at == "unlock":
        ended = replace(s, agent=replace(a, plan=()))
        yield "agent: unlocks", agent_at(ended, "renew", lock="")
    elif a.at == "tick":
        write = "limit", a.home
        yield f"agent: writes {write}", agent_at(by_agent(s, write), "take", lock="")


def agent_at(state: State, at: str, **fields: object) -> State:
    """A state in which the agent is at another step."""
    return replace(state, agent=replace(state.agent, at=at), **fields)


def guard_polls(s: State) -> Iterator[Step]:
    """The guard's poll; it goes on without the lock if an agent keeps it."""
    g = s.guard
    if g.at == "poll" and not s.valid:
        name = "locks" if not s.lock else "goes on without the lock"
        yield f"guard: {name}", guard_at(replace(s, lock=s.lock or "guard"), "record")
    elif g.at == "record":
        of, home = s.record
        yield "guard: reads the record", guard_at(s, "alive", of=of, home=home)
    elif g.at == "alive" and g.of == s.domain != GONE:
        yield "guard: finds the domain alive", guard_at(s, "may")
    elif g.at == "alive":
        yield "guard: finds it gone", guard_ends(s)


def guard_restores(s: State) -> Iterator[Step]:
    """What the guard does with the domain of a record."""
    g = s.guard
    if g.at == "may":
        if s.valid or s.paused:
            yield "guard: leaves it alone", guard_ends(s)
        else:
            yield "guard: reads lease and pauses", guard_at(s, "read")
    elif g.at == "read":
        if todo := safe(s.pcpus, s.limit, g.home) if g.of == s.domain else ():
            yield "guard: reads what is in force", guard_at(s, "ask", plan=todo, wrote=True)
        else:
            yield "guard: finds it safe", guard_acted(s)
    elif g.at == "ask":
        may = not (s.valid or s.paused)
        yield "guard: asks whether it may", guard_at(s, "write") if may else guard_acted(s)
    elif g.at == "write":
        after, left = written(s, g.of, g.plan[0]), g.plan[1:]
        at = "ask" if left else "read"
        yield f"guard: writes {g.plan[0]}", guard_at(after, at, plan=left)
    elif g.at == "pauses":
        yield "guard: reads pauses again", guard_ends(s)


def guard_acted(state: State) -> State:
    """A state in which the guard has nothing more to write."""
    return guard_at(state, "pauses", plan=()) if state.guard.wrote else guard_ends(state)


def guard_at(state: State, at: str, **fields: object) -> State:
    """A state in which the guard is at another step."""
    return replace(state, guard=replace(state.guard, at=at, **fields))


def guard_ends(state: State) -> State:
    """A state in which the guard waits for its next poll."""
    free = replace(state, lock="" if state.lock == "guard" else state.lock)
    return guard_at(free, "poll", of=GONE, home=S, plan=(), wrote=False)


def alone(s: State) -> Iterator[Step]:
    """What happens without anything from outside; a lease that nobody renews ends."""
    if not s.agent.stopped:
        yield from agent_cycle(s)
        yield from agent_writes(s)
    if not s.guard.stopped:
        yield from guard_polls(s)
        yield from guard_restores(s)
    if s.valid and (s.agent.stopped or s.agent.at == "dead"):
        yield "the lease expires", lost(s)


def environment(s: State, most: int) -> Iterator[Step]:
    """What the world does, ``most`` things in all; what is stopped may always be resumed."""
    a, g = s.agent, s.guard
    if a.stopped and a.at != "dead":
        yield "SIGCONT to the agent", replace(s, agent=replace(a, stopped=False))
    if g.stopped:
        yield "SIGCONT to the guard", replace(s, guard=replace(g, stopped=False))
    if s.events == most:
        return
    here, dead = s.domain != GONE, a.at == "dead"
    free = {who: "" if s.lock == who else s.lock for who in ("agent", "guard")}
    able: dict[str, Callable[[], State] | None] = {
        "stop agent": None if dead or a.stopped else lambda: replace(s,
            agent=replace(a, stopped=True)),
        "stop guard": None if g.stopped else lambda: replace(s, guard=replace(g, stopped=True)),
        "kill agent": None if dead else lambda: replace(s,
            agent=Agent("dead"), lock=free["agent"], mine=False),
        "restart agent": (lambda: replace(s, agent=Agent())) if dead else None,
        "restart guard": lambda: replace(s, guard=Guard(), lock=free["guard"]),
        "the agent is slow": (lambda: lost(s)) if s.valid else None,
        "unlink lease": (lambda: replace(lost(s), mine=False)) if s.valid else None,
        "decide": lambda: replace(s, home=F if s.home == S else S),
        "repin to F": (lambda: replace(s, pcpus=F)) if here else None,
        "repin to S": (lambda: replace(s, pcpus=S)) if here else None,
        "migrate away": (lambda: replace(s, domain=GONE)) if here else None,
        "migrate back": None if here else lambda: replace(s,
            domain=s.arrived + 1, arrived=s.arrived + 1, pcpus=BOTH, limit=FREE, touched=False),
        "pause": lambda: replace(s, paused=True),
        "resume": (lambda: replace(s, paused=False)) if s.paused else None,
    }  # fmt: skip
    for name, make in able.items():
        if make is not None:
            yield name, replace(make(), events=s.events + 1)


def broken(before: State, name: str, s: State) -> str:
    """The safety promise that a step breaks, by its number in the README; empty if none."""
    if s.limit not in (F, S, FREE):
        return "1: a limit that no booking has"
    wrote = name.startswith("agent: writes")
    if wrote and before.valid and before.agent.stale:
        return "4: it writes by what it saw before its lease was lost"
    if s.touched and s.domain not in (GONE, s.record[0]):
        return "5: a change that no record undoes"
    if s.late > 1:
        return "6: two writers: the agent goes on after its lease was lost"
    return ""


def good(s: State) -> bool:
    """Whether a booking holds: promise 2, and 3 in that the limit is the one that is wanted."""
    if s.domain == GONE or s.paused or (s.agent.at == "dead" and not s.touched):
        return True  # the last: it came after the agent had died
    return s.pcpus in (F, S) and s.limit == s.pcpus


@dataclass
class Explored:
    """All reachable states, each with the step that led to it first."""

    came: dict[State, tuple[State, str] | None]
    faults: dict[str, State]
    """The first state in which each promise is broken."""

    def trace(self, state: State) -> list[str]:
        """The shortest way to a state."""
        lines = [f"-> {state.pcpus} with the limit of {state.limit}"]
        while (step := self.came[state]) is not None:
            state, name = step
            lines.append(name)
        return lines[::-1]


def explore(most: int) -> Explored:
    """Breadth-first over every interleaving."""
    first = State()
    found = Explored({first: None}, {})
    back: dict[State, list[State]] = {}
    """The states from which the programs alone lead to a state."""
    queue = deque([first])
    while queue:
        s = queue.popleft()
        inside = list(alone(s))
        for _, after in inside:
            back.setdefault(after, []).append(s)
        for name, after in [*inside, *environment(s, most)]:
            if after not in found.came:
                found.came[after] = s, name
                queue.append(after)
            if fault := broken(s, name, after):
                found.faults.setdefault(fault, after)
    stays = closed(set(found.came), back)
    reaches = backwards(stays, back)
    for s in found.came:  # in the order in which they were found
        if not (s.agent.stopped or s.guard.stopped or good(s) or s in reaches):
            found.faults.setdefault("2: the booking is lost for good", s)
            break
    return found


def closed(states: set[State], back: dict[State, list[State]]) -> set[State]:
    """The good states that the programs alone do not lead out of."""
    bad = {s for s in states if not good(s)}
    return states - backwards(bad, back)


def backwards(aims: set[State], back: dict[State, list[State]]) -> set[State]:
    """The states from which the programs alone can reach one of ``aims``."""
    found, todo = set(aims), list(aims)
    while todo:
        for s in back.get(todo.pop(), ()):
            if s not in found:
                found.add(s)
                todo.append(s)
    return found
