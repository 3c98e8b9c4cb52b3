"""``amp-nova pause``, ``resume`` and ``release``: whether the agent manages an instance."""

import argparse
import sys
from pathlib import Path
from typing import Any

from amp_nova import conf as options
from amp_nova.agent.operator import locks
from amp_nova.agent.operator.pause import Pauses
from amp_nova.cmd import table
from amp_nova.cmd.parser import add_config_file
from amp_nova.cmd.table import Table
from amp_nova.exceptions import AmpError, AnswerIsNo

NO_LIBVIRT = "libvirt's Python binding is missing: install amp-nova[agent]"


def add_parser(subparsers: Any) -> None:
    """Add ``pause``, ``resume`` and ``release``."""
    pause = subparsers.add_parser(
        "pause",
        description="Leave the limits and affinities of one instance as they are for a while.",
        epilog="example: amp-nova pause instance-0000002a --ttl 600",
    )
    pause.add_argument(
        "--ttl", type=_seconds, required=True, metavar="S", help="for how many seconds"
    )
    pause.set_defaults(run=run_pause)
    resume = subparsers.add_parser(
        "resume",
        epilog="example: amp-nova resume instance-0000002a",
    )
    resume.set_defaults(run=run_resume)
    for parser in (pause, resume):
        parser.add_argument("instance", metavar="INSTANCE", help="UUID, libvirt name or Nova name")
    release = subparsers.add_parser(
        "release",
        description="Remove the limits and affinities that amp-nova set on some instances or on\n"
        "all. The agent does not manage them again until 'amp-nova resume'.",
        epilog="example: amp-nova release --all --dry-run",
    )
    release.add_argument("instances", metavar="INSTANCE", nargs="*")
    release.add_argument("--all", action="store_true", help="every instance of this host")
    release.add_argument("--dry-run", action="store_true", help="list the changes, make none")
    table.add_arguments(release)
    release.set_defaults(run=run_release)
    for parser in (pause, resume, release):
        add_config_file(parser)


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


def run_pause(args: argparse.Namespace) -> int:
    """Pause one instance. Once this returns, the agent no longer writes to it."""
    conf = options.load(files=args.config_file)
    resource, state_path = _find(conf, args.instance), Path(conf.agent.state_path)
    # Waits for writes that are under way.
    with locks.locked(state_path, locks.CYCLE, wait_s=locks.WAIT_S):
        Pauses(state_path).pause(resource, "paused by an operator", args.ttl)
    print(f"{args.instance} is paused for {args.ttl:g} s")
    return 0


def run_resume(args: argparse.Namespace) -> int:
    """Resume one instance; ``AnswerIsNo`` if it was not paused."""
    conf = options.load(files=args.config_file)
    pauses = Pauses(Path(conf.agent.state_path))
    # A paused instance may have left this host: its UUID alone is enough.
    if pauses.resume(args.instance) or pauses.resume(_find(conf, args.instance)):
        print(f"{args.instance} is managed again")
        return 0
    raise AnswerIsNo(f"{args.instance} was neither paused nor released")


def run_release(args: argparse.Namespace) -> int:
    """Release some instances or all (0), or say what could not be undone (1)."""
    if args.all == bool(args.instances):
        raise AmpError("release: give either INSTANCE... or --all")
    from amp_nova.agent.operator.release import release

    conf = options.load(files=args.config_file)
    done = release(conf, None if args.all else args.instances, dry_run=args.dry_run)
    if args.format == "table" and not (args.columns or args.sort):
        for line in done.changes:
            print(line)
        for name in () if args.dry_run else done.names:
            print(f"released {name}")
        would = "to release" if args.dry_run else "released"
        print(f"{len(done.names)} {would}, {len(done.left)} leftovers")
    else:
        found = {
            "released": list(done.names),
            "changes": list(done.changes),
            "leftovers": list(done.left),
        }
        rows = [line.partition(": ")[::2] for line in done.changes]
        table.show(args, Table(("what", "change"), rows), found)
    for sentence in done.left:
        print(f"amp-nova: {sentence}", file=sys.stderr)
    return 1 if done.left else 0
