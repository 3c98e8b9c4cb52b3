"""``amp-nova completion``: a script with which bash or zsh completes commands and options."""

import argparse
from collections.abc import Iterator
from typing import Any

from amp_nova.exceptions import AmpError

EPILOG = """examples:
  amp-nova completion bash > /etc/bash_completion.d/amp-nova
  amp-nova completion bash --of amp-nova-agent > /etc/bash_completion.d/amp-nova-agent
  amp-nova completion zsh > /usr/local/share/zsh/site-functions/_amp-nova
"""
PROGRAMS = ("amp-nova", "amp-nova-agent")
FILES = ("FILE", "SCENARIO.yaml")
"""Placeholders of arguments that are files."""


def add_parser(subparsers: Any) -> None:
    """Add ``completion`` to the command line."""
    parser = subparsers.add_parser(
        "completion",
        description="Print a script that makes a shell complete commands, options and files.",
        epilog=EPILOG,
    )
    parser.add_argument("shell", choices=("bash", "zsh"), help="bash or zsh", metavar="SHELL")
    parser.add_argument(
        "--of", choices=PROGRAMS, default=PROGRAMS[0], help="the program; default: %(default)s"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script; raises ``AmpError`` if shtab is not installed."""
    from amp_nova.cmd import agent, cli

    try:
        import shtab
    except ImportError as exc:
        raise AmpError(f"completion needs the Python package shtab ({exc}): install it") from exc
    parser = cli.build_parser() if args.of == PROGRAMS[0] else agent.build_parser()
    for action in _actions(parser):
        if action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab's own convention
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
