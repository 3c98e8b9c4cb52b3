# SPDX-License-Identifier: Apache-2.0
"""What the commands share: the services, and where measured values come from."""

import argparse
import os
from collections.abc import Mapping
from typing import Any

from osc_lib.cli.format_columns import DictColumn, ListDictColumn
from osc_lib.command import command

from amp_nova.cmd.command import AmpCommand
from amp_nova.osc.cloud import Cloud, InstantQueries

ADDRESS = "AMP_PROMETHEUS_URL"


class _Command(AmpCommand):
    """A command with the services that it queries."""

    @property
    def cloud(self) -> Cloud:
        cloud: Cloud = self.app.client_manager.amp
        return cloud

    def produce_output(self, parsed_args: argparse.Namespace, columns: Any, data: Any) -> int:
        """Print the result, in which no name controls the terminal."""
        return super().produce_output(parsed_args, _printable(columns), _printable(list(data)))


def _printable(value: Any) -> Any:
    """The value with escapes for what is not printable: others choose names of core types."""
    if isinstance(value, str):
        escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
        return "".join(escaped)
    if isinstance(value, Mapping):
        return {_printable(key): _printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_printable, value))
    if isinstance(value, DictColumn | ListDictColumn):
        return type(value)(_printable(value._value))
    return value


class CloudCommand(_Command, command.Command):
    """A command that changes something and prints nothing."""


class Lister(_Command, command.Lister):
    """A command that prints a table."""


class ShowOne(_Command, command.ShowOne):
    """A command that prints one object."""


def add_prometheus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        default=os.environ.get(ADDRESS),
        help="Prometheus that scrapes the agents, such as http://controller:9090 (default: "
        f"{ADDRESS} of the environment, else the service 'prometheus' of the catalogue)",
    )


def prometheus(cloud: Cloud, args: argparse.Namespace, log: Any) -> InstantQueries | None:
    """The Prometheus to query for measured values; logs a warning if there is none (``None``)."""
    source = cloud.prometheus(args.prometheus)
    if source is None:
        log.warning("no measured values: give --prometheus URL, or register it in the catalogue")
    return source
