# SPDX-License-Identifier: Apache-2.0
"""``amp-nova``: a cliff application. Only the module of the command that was typed is imported."""

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any

import cliff.app
from cliff.commandmanager import CommandManager
from cliff.complete import CompleteCommand
from cliff.help import HelpCommand

from amp_nova.cmd.arguments import Version, nearest, one_sentence
from amp_nova.cmd.command import Command
from amp_nova.exceptions import ConfigInvalid, without_lab

LAB = "amp_nova_lab.commands"
COMMANDS = {
    "topology": (
        "amp_nova.cmd.topology:ShowTopology",
        "show core types, pCPUs and coefficients, with their sources",
    ),
    "calibrate": (
        "amp_nova.cmd.calibrate:Calibrate",
        "measure the coefficient and nominal Ips of every core type",
    ),
    "selftest": (
        "amp_nova.cmd.selftest:SelfTest",
        "test on this machine whether bookings are kept",
    ),
    "status": (
        "amp_nova.cmd.instances:ShowStatus",
        "instances: booked, delivered, quota, core type, shortfall by cause",
    ),
    "explain": ("amp_nova.cmd.instances:Explain", "why an instance has the quota and cores it has"),
    "pause": ("amp_nova.cmd.instances:Pause", "stop managing one instance for a while"),
    "resume": (
        "amp_nova.cmd.instances:Resume",
        "manage an instance again that was paused or released",
    ),
    "release": (
        "amp_nova.cmd.instances:Release",
        "undo what the agent changed, and stop managing instances",
    ),
    "flavor check": ("amp_nova.cmd.flavor:CheckFlavor", "check the extra specs of a flavor"),
    "survey": (f"{LAB}.survey:Survey", "whom a booking would limit, as Prometheus knows them"),
    "record": (f"{LAB}.record:Record", "record this host's instances as a scenario"),
    "simulate": (
        f"{LAB}.simulate:Simulate",
        "run a scenario: a host, its guests and what they do",
    ),
    "compare": (f"{LAB}.simulate:Compare", "run several policies over scenarios, in one table"),
    "whatif": (
        f"{LAB}.whatif:WhatIf",
        "what another policy, machine or booking would have delivered",
    ),
    "reproduce": (
        f"{LAB}.reproduce:Reproduce",
        "the papers' tables and figures, published values beside ours",
    ),
    "probe": ("amp_nova.cmd.flavor:Probe", "judge the vCPUs of the server that it runs in"),
    "demo": (f"{LAB}.demo:Demo", "see bookings kept on fast and slow cores, in half a minute"),
    "help": (f"{__name__}:Help", "explain a command"),
    "complete": (f"{__name__}:Complete", "print a script that completes commands in bash"),
}
"""The class of each command, and its line in ``--help``, in that order."""


class Help(Command, HelpCommand):
    """Explain a command, or list all"""

    _epilog = "example: amp-nova help status"

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """As in cliff, but without importing all commands to list them."""
        if parsed_args.cmd:
            super().take_action(parsed_args)
        else:
            self.app.parser.print_help(self.app.stdout)
        return 0


class Complete(Command, CompleteCommand):
    """Print a script that makes bash complete commands and options"""

    _epilog = "example: amp-nova complete > /etc/bash_completion.d/amp-nova"


class NoCommand(ConfigInvalid, ValueError):
    """There is no such command; cliff expects a ``ValueError``."""


class Commands(CommandManager):
    """The commands by name, imported when they are used."""

    def find_command(self, argv: list[str]) -> Any:
        """The class of a command, its name and its arguments; raises ``NoCommand``."""
        try:
            return super().find_command(argv)
        except ValueError:
            hint = nearest(argv[0], self.commands)
            raise NoCommand(
                f"there is no command '{argv[0]}'{hint}; see 'amp-nova --help'"
            ) from None
        except ModuleNotFoundError as exc:
            if how := without_lab(exc):
                raise NoCommand(f"'{argv[0]}' cannot be run: {how}") from None
            raise


class App(cliff.app.App):
    """The program; its messages begin with its name."""

    NAME = "amp-nova"
    LOG = logging.getLogger("amp_nova")
    CONSOLE_MESSAGE_FORMAT = "amp-nova: %(message)s"

    def __init__(self) -> None:
        # With a namespace, cliff would import all commands.
        super().__init__("Predictable CPU capacity on asymmetric hosts.", None, Commands(""))
        self.command_manager.commands = {
            name: EntryPoint(name, value, "") for name, (value, _) in COMMANDS.items()
        }

    def build_option_parser(
        self, description: str | None, version: str | None, _kwargs: Any = None
    ) -> argparse.ArgumentParser:
        """The options of all commands; ``--help`` is left to the command, if there is one."""
        width = max(map(len, COMMANDS))
        listed = "\n".join(f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items())
        parser = argparse.ArgumentParser(
            prog=self.NAME,
            usage="%(prog)s [--version] [-v] [--debug] COMMAND ...",
            description=description,
            epilog=f"commands:\n{listed}\n\nexamples: amp-nova demo, amp-nova status --help",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False,
            allow_abbrev=False,
        )
        one_sentence(parser)
        add = parser.add_argument
        add("--version", action=Version, nargs=0, help="show the version and exit")
        add("-v", "--verbose", action="count", default=0, dest="verbose_level", help="log more")
        add("--debug", action="store_true", help="show tracebacks")
        parser.set_defaults(log_file=None)
        return parser

    def initialize_app(self, argv: list[str]) -> None:
        """Answer what is not a command; cliff would begin a dialogue."""
        if argv[:1] in (["-h"], ["--help"]):
            self.parser.print_help(self.stdout)
            self.parser.exit()
        if not argv:
            self.parser.error("the following arguments are required: COMMAND")

    def get_fuzzy_matches(self, cmd: str) -> list[str]:
        """None: the error of ``Commands`` names the command that was probably meant."""
        return []

    def run(self, argv: list[str]) -> int:
        """As in cliff; the handlers of the log end with it."""
        root = logging.getLogger()
        handlers = root.handlers[:]
        try:
            status: int = super().run(argv)
            return status
        except NoCommand as exc:  # with --debug, cliff raises it once more
            self.LOG.error("%s", exc)
            return 2
        finally:
            root.handlers[:] = handlers


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    sys.stdout = sys.stdout or io.StringIO()  # closed by who started it
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may not be encodable
        sys.stdout.reconfigure(errors="backslashreplace")
    status = App().run(list(sys.argv[1:] if argv is None else argv))
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has quit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


if __name__ == "__main__":
    sys.exit(main())
