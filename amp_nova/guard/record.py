# SPDX-License-Identifier: Apache-2.0
"""Records: the state before the agent's first change, and the safe state without an agent.

There is one JSON file per domain, written durably before the agent changes the domain. A record
identifies its targets uniquely: a group by path and inode, a process or thread by ID and start
time.
"""

import contextlib
import itertools
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from amp_nova.kernel.cgroups import PERIOD_US
from amp_nova.kernel.threads import started
from amp_nova.model.bandwidth import Bandwidth, SafeState

FOLDER = "records"
"""The folder of records, below the state folder."""
VERSION = 2
"""A new version that means the same keeps the number."""
ASIDE = "aside"
RELEASED = "released"
"""How the reason of a pause begins that ``amp-nova release`` made."""
_BYTES_MAX = 4_000_000
PCPUS_MAX = 8192
"""What Linux supports at most (``CONFIG_NR_CPUS``)."""
PCpus = frozenset[int]
AS_FOUND = SafeState()


@dataclass(frozen=True, slots=True)
class Tuning:
    """The limit (``None``: no limit), the affinity and the burst of a vCPU."""

    bandwidth: Bandwidth | None
    pcpus: PCpus
    burst_us: int = 0


@dataclass(frozen=True, slots=True)
class RecordedVcpu:
    """One vCPU: its thread and CPU cgroup, its original state, and its safe state.

    ``task``: the thread's folder in ``/proc``; ``allowed``: the pCPUs that libvirt permits;
    ``version``: that of the cgroup hierarchy, 1 or 2.
    """

    task: str
    started: str
    group: str
    inode: int
    version: int
    allowed: PCpus
    original: Tuning
    safe: SafeState = AS_FOUND


@dataclass(frozen=True, slots=True)
class RecordedDomain:
    """One domain: its names, process and group, and its original and its safe CPU weight.

    ``group``: empty if amp-nova must not change its weight. ``weight`` and ``safe_weight``:
    ``cpu.weight`` or, in cgroup v1, ``cpu.shares``; 0 if unknown.
    """

    resource: str
    name: str
    display_name: str
    process: str
    started: str
    group: str = ""
    inode: int = 0
    weight: int = 0
    safe_weight: int = 0
    vcpus: dict[int, RecordedVcpu] = field(default_factory=dict)


def alive(domain: RecordedDomain) -> bool:
    """Whether the process of a record still runs."""
    try:
        return started(domain.process) == domain.started
    except (OSError, ValueError):
        return False


def save(folder: Path, domain: RecordedDomain) -> None:
    """Write a record durably and atomically; raises ``OSError`` if that fails."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{domain.resource}.json"
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            json.dump(_plain(domain), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise
    above = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(above)
    finally:
        os.close(above)


def forget(folder: Path, resource: str) -> None:
    """Remove a record, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder / f"{resource}.json")


def set_aside(folder: Path, resource: str) -> Path:
    """Rename a record that cannot be used, so that nothing overwrites it; returns the new path.

    Raises ``OSError``.
    """
    path = folder / f"{resource}.json"
    for number in itertools.count(1):
        kept = folder / f"{resource}.{number}.{ASIDE}"
        with contextlib.suppress(FileExistsError):
            os.link(path, kept, follow_symlinks=False)
            os.unlink(path)
            return kept
    raise AssertionError("unreachable")


def load(folder: Path, resource: str) -> RecordedDomain | None:
    """The record of a domain; ``None`` if there is none.

    Raises ``ValueError`` or ``OSError`` if the record cannot be used.
    """
    try:
        fd = os.open(folder / f"{resource}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, encoding="utf-8") as file:
        about, trusted = os.fstat(fd), (0, os.stat(folder).st_uid)
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in trusted or about.st_mode & 0o022:
            raise ValueError("it is not a regular file that only the agent's user can write")
        try:
            domain = _domain(json.loads(file.read(_BYTES_MAX)))
        except (LookupError, TypeError, AttributeError, RecursionError, OverflowError) as exc:
            raise ValueError(f"it is not a valid record ({exc!r})") from exc
    if domain.resource != resource:
        raise ValueError("it is the record of another instance")
    return domain


def load_all(folder: Path) -> Iterator[tuple[str, RecordedDomain | Exception]]:
    """Yield the UUID of each instance that has a record, with the record or why it is unusable."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    for name in names:
        resource, end = os.path.splitext(name)
        if end == ".json":
            try:
                domain = load(folder, resource)
            except (OSError, ValueError) as exc:
                yield resource, exc
                continue
            if domain is not None:
                yield resource, domain


def _plain(domain: RecordedDomain) -> dict[str, Any]:
    vcpus = {
        str(index): {
            **{name: getattr(v, name) for name in ("task", "started", "group", "inode", "version")},
            "allowed": sorted(v.allowed),
            "found": {
                "pcpus": sorted(v.original.pcpus),
                **_plain_limit(v.original.bandwidth, v.original.burst_us),
            },
            "safe": {
                "pcpus": None if v.safe.pcpus is None else sorted(v.safe.pcpus),
                "limits": [{"pcpus": sorted(p), **_plain_limit(x)} for p, x in v.safe.limits],
                "leave": v.safe.leave,
            },
        }
        for index, v in domain.vcpus.items()
    }
    about = {f.name: getattr(domain, f.name) for f in fields(domain)}
    return {"version": VERSION, **about, "vcpus": vcpus}


def _plain_limit(limit: Bandwidth | None, burst_us: int = 0) -> dict[str, int | None]:
    quota_us, period_us = (None, PERIOD_US) if limit is None else limit
    return {"quota_us": quota_us, "period_us": period_us, "burst_us": burst_us}


def _domain(plain: Any) -> RecordedDomain:
    version = plain["version"]
    if version != VERSION:
        raise ValueError(f"unsupported record version {version!r} (expected {VERSION})")
    process = str(plain["process"])
    vcpus = {int(index): _vcpu(vcpu, process) for index, vcpu in plain["vcpus"].items()}
    return RecordedDomain(**_texts_and_numbers(RecordedDomain, plain), vcpus=vcpus)


def _texts_and_numbers(of: Any, plain: Any) -> dict[str, Any]:
    """The values of the fields of these types."""
    return {f.name: f.type(plain[f.name]) for f in fields(of) if f.type in (str, int)}


def _vcpu(plain: Any, process: str) -> RecordedVcpu:
    safe = plain["safe"]
    if not re.fullmatch(re.escape(process) + "/task/[0-9]{1,9}", plain["task"]):
        raise ValueError(f"its task {plain['task']!r} is not a thread of its process")
    if plain["version"] not in (1, 2):
        raise ValueError(f"its cgroup version {plain['version']!r} is neither 1 nor 2")
    limits = tuple((_pcpus(x["pcpus"]), _limit(x)[0]) for x in safe["limits"])
    pcpus = None if safe["pcpus"] is None else _pcpus(safe["pcpus"])
    limit, burst_us = _limit(plain["found"])
    return RecordedVcpu(
        **_texts_and_numbers(RecordedVcpu, plain),
        allowed=_pcpus(plain["allowed"]),
        original=Tuning(limit, _pcpus(plain["found"]["pcpus"]), burst_us),
        safe=SafeState(pcpus, limits, bool(safe["leave"])),
    )


def _limit(plain: Any) -> tuple[Bandwidth | None, int]:
    """A limit and a burst."""
    quota, period_us, burst_us = plain["quota_us"], int(plain["period_us"]), int(plain["burst_us"])
    if period_us <= 0 or burst_us < 0 or (quota is not None and int(quota) <= 0):
        raise ValueError(f"its limit {quota!r}/{period_us} us is out of range")
    return None if quota is None else Bandwidth(int(quota), period_us), burst_us


def _pcpus(plain: Any) -> PCpus:
    pcpus = frozenset(int(p) for p in plain)
    if not all(0 <= p < PCPUS_MAX for p in pcpus):
        raise ValueError(f"its pCPUs are not all below {PCPUS_MAX}")
    return pcpus
