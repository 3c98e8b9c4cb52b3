# SPDX-License-Identifier: Apache-2.0
"""Real guests, real cgroups, a real agent."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import WRITER, Agent, Lab, opened, until


def leftovers(folder: Path) -> list[str]:
    """Processes, mounts, domains and cgroups of tests that use a folder, or whose process ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if f"{folder}" in command and int(process.name) != os.getpid():
                found.append(f"process {process.name} ({command[:300]})")
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    found += [f"mount {line.split()[1]}" for line in mounts if f" {folder}" in line]
    found += [
        f"domain {p.stem}" for p in Path("/run/libvirt/qemu").glob(f"amp-{os.getpid()}-*.pid")
    ]
    for group in Path("/sys/fs/cgroup/cpu").glob("amp-test-*"):
        made_by = int(group.name.split("-")[2])
        if made_by == os.getpid() or not Path(f"/proc/{made_by}").exists():
            found.append(f"cgroup {group}")
    return found


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail at the end of the run if a test left anything behind."""
    yield
    folder = tmp_path_factory.getbasetemp()
    with contextlib.suppress(AssertionError):  # guards end by themselves
        until(lambda: not leftovers(folder), 60)
    assert leftovers(folder) == []


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab of real guests."""
    with opened(tmp_path_factory.mktemp("lab")) as made:
        yield made


@pytest.fixture
def guests(lab: Lab) -> Iterator[Lab]:
    """The lab; the guests a test starts end with it."""
    yield lab
    lab.clear()


@pytest.fixture
def writer() -> str:
    """The ``[agent] writer`` of the test's agent; ``lab.both_writers`` runs it with each."""
    return WRITER


@pytest.fixture
def agent(lab: Lab, tmp_path: Path, writer: str) -> Iterator[Agent]:
    """An agent, not started yet; stopped with the test."""
    made = Agent(tmp_path / "agent", more=f"writer = {writer}\n")
    yield made
    made.stop()
