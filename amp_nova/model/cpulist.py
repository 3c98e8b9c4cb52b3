# SPDX-License-Identifier: Apache-2.0
"""CPU lists in the kernel's notation (``0-3,8``) and in libvirt's (``0-3,^2``)."""

import functools
from collections.abc import Iterable, Iterator

CPUS_MAX = 1 << 16
"""More CPUs than any machine has. A greater id, or a list that names more of them, is garbage, and
must not exhaust memory or time."""


@functools.lru_cache(maxsize=1024)
def shared(cpus: frozenset[int]) -> frozenset[int]:
    """The same object for equal sets: many threads have one, and 128 CPUs take 8 KiB."""
    return cpus


def _ranges(text: str) -> Iterator[range]:
    for part in text.strip().split(",") if text.strip() else ():
        first, dash, last = part.partition("-")
        start = _number(first)
        stop = _number(last) if dash else start
        if start > stop:
            raise ValueError(f"'{part}' ends before it starts")
        yield range(start, stop + 1)


def count(text: str) -> int:
    """How many ids a kernel CPU list names, repeated ones included; as for ``parse``."""
    return sum(map(len, _ranges(text)))


def parse(text: str) -> tuple[int, ...]:
    """The ids in a kernel CPU list, ascending and unique.

    Raises ``ValueError`` if it is malformed or names more than ``CPUS_MAX`` CPUs.
    """
    cpus, named = set[int](), 0
    for ids in _ranges(text):
        if (named := named + len(ids)) > CPUS_MAX:
            raise ValueError("a CPU list names too many CPUs")
        cpus.update(ids)
    return tuple(sorted(cpus))


def parse_cpuset(text: str) -> frozenset[int]:
    """The ids in a cpuset of libvirt or nova.conf, in which ``^`` excludes an id.

    Raises ``ValueError`` if it is malformed; unlike a kernel list, a cpuset may not be empty.
    """
    parts = [part for part in text.replace(" ", "").split(",") if part]
    excluded = [part[1:] for part in parts if part.startswith("^")]
    if not parts or "" in excluded:
        raise ValueError(f"'{text}' is not a cpuset")
    included = ",".join(part for part in parts if not part.startswith("^"))
    return shared(frozenset(parse(included)) - set(parse(",".join(excluded))))


def show(cpus: Iterable[int]) -> str:
    """The ids as a kernel CPU list such as ``0-3,8``; an empty string if there are none."""
    parts: list[str] = []
    ordered = sorted(set(cpus))
    first = 0
    for index, cpu in enumerate(ordered):
        if index + 1 < len(ordered) and ordered[index + 1] == cpu + 1:
            continue
        start = ordered[first]
        parts.append(str(start) if start == cpu else f"{start}-{cpu}")
        first = index + 1
    return ",".join(parts)


def _number(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text) < CPUS_MAX):
        raise ValueError(f"'{text}' is not a CPU id")
    return int(text)
