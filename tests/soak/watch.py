# SPDX-License-Identifier: Apache-2.0
"""What a process takes, minute by minute, and whether that stays as it is."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Taken:
    """What one process takes: memory of its own in KiB, descriptors, threads, exported series."""

    memory_kib: int
    descriptors: int
    threads: int
    series: int

    @classmethod
    def of(cls, pid: int, series: int) -> "Taken":
        """What a process takes now."""
        proc = Path(f"/proc/{pid}")
        said = dict(
            line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
        )
        memory, threads = int(said["RssAnon"].split()[0]), int(said["Threads"])
        return cls(memory, len(os.listdir(proc / "fd")), threads, series)


SLACK = Taken(memory_kib=1024, descriptors=4, threads=1, series=0)
"""How much more than before is no growth: the moment of a look is at random."""
SHARE = Taken(memory_kib=2, descriptors=0, threads=0, series=10)
"""The same in percent; whichever is more counts."""


def most(looks: Sequence[Taken]) -> Taken:
    """The most of each."""
    return Taken(*(max(getattr(t, f.name) for t in looks) for f in fields(Taken)))


def growth(looks: Sequence[Taken]) -> list[str]:
    """What grew, in words: the most of the last third against the most of the second one.

    The first third is for caches, pools and a page with ten minutes of history to fill.
    """
    third = len(looks) // 3
    if not third:
        return ["it was not watched long enough"]
    before, after = most(looks[third : 2 * third]), most(looks[2 * third :])
    grew = []
    for field in fields(Taken):
        was, now = getattr(before, field.name), getattr(after, field.name)
        slack = max(getattr(SLACK, field.name), was * getattr(SHARE, field.name) / 100)
        if now > was + slack:
            grew.append(f"{field.name} grew from {was} to {now}")
    return grew
