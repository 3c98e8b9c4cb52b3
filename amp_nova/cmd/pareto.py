"""Which policies are worth choosing: groups with equal results that no other group beats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOLERANCE_RATIO = 0.005
"""Results that differ by less than this count as equal."""
NAMES_MAX = 3

Row = Mapping[str, Any]
"""The result of one policy: ``policy``, ``throughput`` and ``unfairness`` are read here."""


@dataclass(frozen=True, slots=True)
class Group:
    """Policies whose throughput and unfairness coincide; ``front``: no other group beats them.

    A group beats another that it equals or exceeds in both, and exceeds in one.
    """

    policies: tuple[str, ...]
    throughput: float
    unfairness: float
    front: bool = True

    @property
    def names(self) -> str:
        """The names of the first few policies, and how many more there are."""
        more = len(self.policies) - NAMES_MAX
        names = ", ".join(self.policies[:NAMES_MAX])
        return names if more <= 0 else f"{names} and {more} more"


def groups(rows: Sequence[Row]) -> list[Group]:
    """The groups of one scenario's policies, the most throughput first.

    Policies without a throughput or an unfairness are left out.
    """
    found: list[list[Row]] = []
    for row in rows:
        if row["throughput"] is None or row["unfairness"] is None:
            continue
        same = next((group for group in found if _same(group[0], row)), None)
        if same is None:
            found.append([row])
        else:
            same.append(row)
    made = [
        Group(tuple(r["policy"] for r in group), group[0]["throughput"], group[0]["unfairness"])
        for group in found
    ]
    made.sort(key=lambda g: (-g.throughput, g.unfairness))
    return [
        Group(g.policies, g.throughput, g.unfairness, not any(_beats(o, g) for o in made))
        for g in made
    ]


def _same(one: Row, other: Row) -> bool:
    return all(_close(one[key], other[key]) for key in ("throughput", "unfairness"))


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= TOLERANCE_RATIO * max(abs(one), abs(other))


def _beats(one: Group, other: Group) -> bool:
    more = one.throughput > other.throughput and not _close(one.throughput, other.throughput)
    fairer = one.unfairness < other.unfairness and not _close(one.unfairness, other.unfairness)
    as_much = more or _close(one.throughput, other.throughput)
    as_fair = fairer or _close(one.unfairness, other.unfairness)
    return as_much and as_fair and (more or fairer)


def message(found: Sequence[Group]) -> str:
    """What the comparison says, in one sentence."""
    front = [group for group in found if group.front]
    if not front:
        return "No policy has both a throughput and an unfairness."
    most, fairest = front[0], min(front, key=lambda g: g.unfairness)
    if most is fairest:
        return f"The most throughput and the least unfairness: {most.names}."
    between = [g.names for g in front if g is not most and g is not fairest]
    parts = [
        f"The most throughput: {most.names} ({most.throughput:.3f})",
        f"the least unfairness: {fairest.names} ({fairest.unfairness:.3f})",
        *([f"in between: {'; '.join(between)}"] if between else []),
    ]
    return "; ".join(parts) + "."
