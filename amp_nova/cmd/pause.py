"""``amp-nova pause``, ``resume`` and ``release``: exclude instances from control."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from amp_nova import conf as options
from amp_nova.agent.operator.pause import Holds
from amp_nova.exceptions import AmpError


def add_parser(subparsers: Any) -> None:
    """Add ``pause``, ``resume`` and ``release``."""
    pause = subparsers.add_parser(
        "pause",
        help="stop controlling one instance for a while",
        epilog="example: amp-nova pause instance-0000002a --ttl 600",
    )
    pause.add_argument("--ttl", type=_seconds, required=True, metavar="S", help="seconds")
    pause.set_defaults(run=run_pause)
    resume = subparsers.add_parser(
        "resume",
        help="control an instance again that was paused or released",
        epilog="example: amp-nova resume instance-0000002a",
    )
    resume.set_defaults(run=run_resume)
    release = subparsers.add_parser(
        "release",
        help="restore what the flavor alone defines",
        description="Restore what the flavor alone defines, for one instance or for all that have "
        "amp:* keys. The agent does not control them until 'amp-nova resume'.",
        epilog="example: amp-nova release",
    )
    release.set_defaults(run=run_release)
    for parser in (pause, resume):
        parser.add_argument("instance", metavar="INSTANCE", help="UUID, libvirt name or Nova name")
    release.add_argument("instance", metavar="INSTANCE", nargs="?")
    for parser in (pause, resume, release):
        parser.add_argument("--config-file", metavar="FILE", action="append")
    release.add_argument("--format", choices=["table", "json"], default="table")


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
        from amp_nova.agent.service import make_host, resolve
    except ImportError as exc:
        raise AmpError("libvirt's Python binding is missing: install amp-nova[agent]") from exc
    here = {r.domain.resource: r.domain for r in make_host(conf).observe().domains}
    return resolve(instance, {u: (d.name, d.display_name) for u, d in here.items()})


def run_pause(args: argparse.Namespace) -> int:
    """Pause one instance for ``--ttl`` seconds."""
    conf = options.load(files=args.config_file)
    resource = _find(conf, args.instance)
    Holds(Path(conf.agent.state_path)).hold(resource, "paused by an operator", args.ttl)
    print(f"{args.instance} is paused for {args.ttl:g} s")
    return 0


def run_resume(args: argparse.Namespace) -> int:
    """Control one instance again (0); it was neither paused nor released (1)."""
    conf = options.load(files=args.config_file)
    holds = Holds(Path(conf.agent.state_path))
    # An excluded instance may have left this host: its UUID is enough.
    if holds.resume(args.instance) or holds.resume(_find(conf, args.instance)):
        print(f"{args.instance} is controlled again")
        return 0
    print(f"amp-nova: {args.instance} was neither paused nor released", file=sys.stderr)
    return 1


def run_release(args: argparse.Namespace) -> int:
    """Release one instance or all (0); some settings could not be restored (1)."""
    try:
        from amp_nova.agent.service import release
    except ImportError as exc:
        raise AmpError("libvirt's Python binding is missing: install amp-nova[agent]") from exc
    conf = options.load(files=args.config_file)
    released, left = release(conf, None if args.instance is None else [args.instance])
    if args.format == "json":
        print(json.dumps({"released": released, "leftovers": left}, indent=2))
    else:
        for name in released:
            print(f"released {name}")
        print(f"{len(released)} released, {len(left)} leftovers")
    for sentence in left:
        print(f"amp-nova: {sentence}", file=sys.stderr)
    return 1 if left else 0
