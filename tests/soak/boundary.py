# SPDX-License-Identifier: Apache-2.0
"""A real agent over a FAKE node on which domains come and go: its loop, writer and publishers.

Run by ``tests.soak`` as a process of its own, so that what is measured is the agent.
"""

import sys
import threading
from pathlib import Path

import pytest

from amp_nova.cmd import agent
from tests.support.fakehost import FakeFiles, Node
from tests.unit.agent.setups import Setup

DOMAINS = 20
VCPUS = 2
REPLACED = 2
"""So many domains are destroyed and as many created every ``EVERY_S``."""
EVERY_S = 1.0


class Coming:
    """Creates and destroys domains; their number stays the same."""

    def __init__(self, node: Node, made: Path) -> None:
        self._node, self._made = node, made
        self._places: list[str] = []
        self.count = 0
        for _ in range(DOMAINS):
            self._create(len(self._places))

    @property
    def _host(self) -> FakeFiles:
        return self._node.host

    def _create(self, place: int) -> None:
        name = f"instance-{self.count:08x}"
        specs = {"amp:pref_core": "0.05"} if self.count % 2 else None
        self._host.start(name, VCPUS, 10_000 + 100 * place, self.count)
        self._host.weight(name)
        self._node.libvirt.define(name, vcpus=VCPUS, specs=specs)
        self._places[place : place + 1] = [name]
        self.count += 1
        fresh = self._made.with_suffix(".new")  # read at any moment
        fresh.write_text(f"{self.count}")
        fresh.replace(self._made)

    def replace(self) -> None:
        """Destroy the oldest ones and create others; the fake's own notes are dropped."""
        for _ in range(REPLACED):
            place = self.count % DOMAINS
            name = self._places[place]
            self._node.libvirt.forget(name)
            self._host.stop(name, 10_000 + 100 * place)
            self._create(place)
        self._node.kernel.written.clear()
        self._node.kernel.ratios.clear()


def main() -> int:
    """The agent's own ``main``, with a fake node in place of the machine."""
    folder, *arguments = sys.argv[1:]
    with pytest.MonkeyPatch.context() as patched:
        setup = Setup(Path(folder), patched)
        coming = Coming(setup.node, Path(folder) / "made")
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(EVERY_S):
                coming.replace()
                if setup.wake is not None:
                    setup.wake.set()

        thread = threading.Thread(target=run, name="coming", daemon=True)
        thread.start()
        try:
            return agent.main(arguments)
        finally:
            ended.set()
            thread.join()


if __name__ == "__main__":
    sys.exit(main())
