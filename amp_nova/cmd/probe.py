"""``amp-nova probe``: the file ``amp_nova/probe.py``, which also runs alone, as a command."""

import argparse

from amp_nova import probe
from amp_nova.cmd.command import Command
from amp_nova.exceptions import ConfigInvalid


class Probe(Command):
    """Judge the vCPUs of this server: capacity, limit, contention, speed and a promise"""

    _epilog = "example: amp-nova probe --duration 60"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of ``probe``."""
        probe.add_arguments(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Measure and print the report; 1 if the promise was not kept."""
        try:
            text, kept = probe.run(parsed_args)
        except ValueError as exc:
            raise ConfigInvalid(exc) from None
        print(text, file=self.app.stdout)
        return 0 if kept else 1
