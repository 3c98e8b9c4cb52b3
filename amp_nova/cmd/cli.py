"""``amp-nova``: the command, with one module per subcommand or family of subcommands.

A module has ``add_parser(subparsers)``, which sets ``run`` as the parser's default, and
``run(args) -> int``, which returns exit status 0 (ok), 1 (the answer is "no") or 2 (bad input). An
``AmpError`` that reaches ``main`` is bad input, or the answer if it is ``AnswerIsNo``; its message
is printed. Only the module of the command that was typed is imported, and none for ``--help``.
"""

import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amp_nova.cmd.parser import Parser, nearest
from amp_nova.exceptions import AmpError, AnswerIsNo


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: the module of ``amp_nova`` that has it, and its line in ``--help``."""

    module: str
    help: str


COMMANDS: Mapping[str, Command] = {
    "topology": Command(
        "cmd.topology", "show core types, pCPUs and coefficients, with their sources"
    ),
    "calibrate": Command(
        "cmd.calibrate", "measure the coefficient and nominal Ips of every core type"
    ),
    "status": Command(
        "cmd.status", "instances: booked, delivered, quota, core type, shortfall by cause"
    ),
    "explain": Command("cmd.status", "why an instance has the quota and cores it has"),
    "pause": Command("cmd.pause", "stop managing one instance for a while"),
    "resume": Command("cmd.pause", "manage an instance again that was paused or released"),
    "release": Command("cmd.pause", "undo what the agent changed, and stop managing instances"),
    "flavor": Command("cmd.flavor", "check the extra specs of a flavor"),
    "record": Command("sim.commands.record", "record this host's instances as a scenario"),
    "simulate": Command(
        "sim.commands.simulate", "run a scenario: a host, its guests and what they do"
    ),
    "compare": Command("sim.commands.compare", "run several policies over scenarios, in one table"),
    "whatif": Command(
        "sim.commands.whatif", "what another policy, machine or booking would have delivered"
    ),
    "reproduce": Command(
        "sim.commands.reproduce", "the papers' tables and figures, published values beside ours"
    ),
    "demo": Command(
        "sim.commands.demo", "see bookings kept on fast and slow cores, in half a minute"
    ),
    "completion": Command("cmd.completion", "print a completion script for bash or zsh"),
}
"""The subcommands, in the order of ``--help``."""


class _Subparsers:
    """Passed to a module's ``add_parser``; gives every parser its line in ``--help``."""

    def __init__(self, action: Any) -> None:
        self._action = action

    def add_parser(self, name: str, **settings: Any) -> Any:
        return self._action.add_parser(name, **{**settings, "help": COMMANDS[name].help})


def build_parser(modules: Sequence[str] | None = None) -> Parser:
    """The parser of ``amp-nova``.

    Args:
        modules: the modules whose subcommands are parsed, ``None`` for all; of all others the
            parser knows only the name and the line in ``--help``.
    """
    parser = Parser(
        prog="amp-nova",
        description="Predictable CPU capacity on asymmetric hosts.",
        epilog="example: amp-nova demo",
    )
    action = parser.add_subparsers(
        metavar="COMMAND", dest="command", required=True, parser_class=Parser
    )
    subparsers, imported = _Subparsers(action), set()
    for name, command in COMMANDS.items():
        if modules is not None and command.module not in modules:
            subparsers.add_parser(name)
        elif command.module not in imported:
            imported.add(command.module)
            importlib.import_module(f"amp_nova.{command.module}").add_parser(subparsers)
    return parser


def _parser_for(words: Sequence[str]) -> Parser:
    """The parser for these words, which loads only the module that they need."""
    name = next((word for word in words if not word.startswith("-")), None)
    if name is None:
        return build_parser([])
    if name not in COMMANDS:
        build_parser([]).error(f"there is no command '{name}'{nearest(name, COMMANDS)}")
    return build_parser([COMMANDS[name].module])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may not be encodable
        sys.stdout.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if argv is None else argv
    args = _parser_for(words).parse_args(words)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except AmpError as exc:
        print(f"amp-nova: {exc.advised}", file=sys.stderr)
        return 1 if isinstance(exc, AnswerIsNo) else 2
    except BrokenPipeError:  # the reader (head, less) has quit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
