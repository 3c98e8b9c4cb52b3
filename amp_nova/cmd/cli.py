"""``amp-nova``: the command, with one module per subcommand.

A subcommand module has ``add_parser(subparsers)``, which sets ``run`` as the parser's default, and
``run(args) -> int``, which returns exit status 0 (ok), 1 (the answer is "no") or 2 (bad input). An
``AmpError`` that reaches ``main`` is bad input: its message is printed.
"""

import argparse
import importlib
import importlib.metadata
import io
import os
import sys
from collections.abc import Sequence

from amp_nova.exceptions import AmpError

COMMANDS = (
    "topology",
    "calibrate",
    "status",
    "pause",
    "flavor",
    "simulate",
    "compare",
    "reproduce",
    "demo",
)
"""Modules of ``amp_nova.cmd``, in the order of ``--help``."""


class Parser(argparse.ArgumentParser):
    """argparse with one-sentence errors."""

    def error(self, message: str) -> "None":  # type: ignore[override]
        self.exit(2, f"{self.prog}: {message}; see '{self.prog} --help'\n")


def build_parser() -> Parser:
    """The parser of ``amp-nova`` with all subcommands."""
    parser = Parser(
        prog="amp-nova",
        description="Predictable CPU capacity on asymmetric hosts.",
        epilog="example: amp-nova demo",
    )
    version = importlib.metadata.version("amp-nova")
    parser.add_argument("--version", action="version", version=f"amp-nova {version}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for name in COMMANDS:
        importlib.import_module(f"amp_nova.cmd.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may not be encodable
        sys.stdout.reconfigure(errors="backslashreplace")
    args = build_parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except AmpError as exc:
        print(f"amp-nova: {exc}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader (head, less) has quit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
