"""``amp-nova pause``, ``resume`` and ``release``: whether the agent manages an instance."""

import argparse
from pathlib import Path
from typing import Any

from amp_nova import conf as options
from amp_nova.agent.operator import locks
from amp_nova.agent.operator.pause import Pauses
from amp_nova.cmd.arguments import add_config_file
from amp_nova.cmd.command import Answer, Command, Report
from amp_nova.exceptions import AmpError, AnswerIsNo

NO_LIBVIRT = "libvirt's Python binding is missing: install amp-nova[agent]"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1e9:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0")
    return value


def _find(conf: Any, instance: str) -> str:
    try:
        from amp_nova.agent.operator.instances import resolve
        from amp_nova.agent.wiring import make_sensor
    except ImportError as exc:
        raise AmpError(NO_LIBVIRT) from exc
    here = {r.domain.resource: r.domain for r in make_sensor(conf).observe().domains}
    return resolve(instance, {u: (d.name, d.display_name) for u, d in here.items()})


class Pause(Command):
    """Leave the limits and affinities of one instance as they are for a while"""

    _epilog = "example: amp-nova pause instance-0000002a --ttl 600"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of ``pause``."""
        parser.add_argument(
            "--ttl", type=_seconds, required=True, metavar="S", help="for how many seconds"
        )
        parser.add_argument("instance", metavar="INSTANCE", help="UUID, libvirt name or Nova name")
        add_config_file(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Pause one instance. Once this returns, the agent no longer writes to it."""
        conf = options.load(files=parsed_args.config_file)
        resource, state_path = _find(conf, parsed_args.instance), Path(conf.agent.state_path)
        # Waits for writes that are under way.
        with locks.locked(state_path, locks.CYCLE, wait_s=locks.WAIT_S):
            Pauses(state_path).pause(resource, "paused by an operator", parsed_args.ttl)
        print(f"{parsed_args.instance} is paused for {parsed_args.ttl:g} s")


class Resume(Command):
    """Let the agent manage an instance again that was paused or released"""

    _epilog = "example: amp-nova resume instance-0000002a"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of ``resume``."""
        parser.add_argument("instance", metavar="INSTANCE", help="UUID, libvirt name or Nova name")
        add_config_file(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Resume one instance; ``AnswerIsNo`` if it was not paused."""
        conf, instance = options.load(files=parsed_args.config_file), parsed_args.instance
        pauses = Pauses(Path(conf.agent.state_path))
        # A paused instance may have left this host: its UUID alone is enough.
        if not (pauses.resume(instance) or pauses.resume(_find(conf, instance))):
            raise AnswerIsNo(f"{instance} was neither paused nor released")
        print(f"{instance} is managed again")


class Release(Report):
    """Remove the limits and affinities that amp-nova set on some instances or on all

    The agent does not manage them again until 'amp-nova resume'.
    """

    _epilog = "example: amp-nova release --all --dry-run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of ``release``."""
        parser.add_argument("instances", metavar="INSTANCE", nargs="*")
        parser.add_argument("--all", action="store_true", help="every instance of this host")
        parser.add_argument("--dry-run", action="store_true", help="list the changes, make none")
        add_config_file(parser)

    def answer(self, args: argparse.Namespace) -> Answer:
        """The changes; exit status 1 if something could not be undone."""
        if args.all == bool(args.instances):
            raise AmpError("release: give either INSTANCE... or --all")
        from amp_nova.agent.operator.release import release

        conf = options.load(files=args.config_file)
        done = release(conf, None if args.all else args.instances, dry_run=args.dry_run)
        for sentence in done.left:
            self.log.error("%s", sentence)
        self.status = 1 if done.left else 0
        would = "to release" if args.dry_run else "released"
        names = [] if args.dry_run else [f"released {name}" for name in done.names]
        return Answer(
            ("What", "Change"),
            [line.partition(": ")[::2] for line in done.changes],
            {
                "released": list(done.names),
                "changes": list(done.changes),
                "leftovers": list(done.left),
            },
            below=[*names, f"{len(done.names)} {would}, {len(done.left)} leftovers"],
        )
