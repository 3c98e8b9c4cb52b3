"""``amp-nova-agent``: the compute node's service."""

import argparse
import logging
import sys
from collections.abc import Sequence

from amp_nova import conf as options
from amp_nova.cmd.cli import Parser
from amp_nova.exceptions import AmpError

EXAMPLE = """example:
  amp-nova-agent --dry-run        what it would change now, and why
  amp-nova-agent --once           one cycle, then exit
"""


def build_parser() -> Parser:
    """The command line of ``amp-nova-agent``."""
    parser = Parser(
        prog="amp-nova-agent",
        description="Keep what instances are delivered equal to what they booked.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config-file", metavar="FILE", action="append", help="instead of the usual places"
    )
    parser.add_argument("--once", action="store_true", help="run one cycle and exit")
    parser.add_argument(
        "--dry-run", action="store_true", help="decide once, print, change nothing and exit"
    )
    parser.add_argument("--debug", action="store_true", help="log more")
    return parser


def _single(arguments: argparse.Namespace) -> int:
    from amp_nova.agent.operator.status import describe
    from amp_nova.agent.service import Service

    service = Service(options.load(files=arguments.config_file), dry_run=arguments.dry_run)
    cycle = service.once()
    for warning in cycle.topology.warnings:
        print(f"amp-nova-agent: warning: {warning}", file=sys.stderr)
    lines = describe(cycle)
    lines += service.poll_io_twice() if arguments.dry_run else []
    print("\n".join(lines) or "nothing to change")
    for domain in cycle.domains:
        if domain.problem:
            print(f"{domain.domain.name}: {domain.problem}")
        for vcpu in domain.vcpus:
            if vcpu.entitlement.note:
                print(f"{domain.domain.name} vCPU {vcpu.reading.index}: {vcpu.entitlement.note}")
    return 1 if cycle.outcome.failures else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent; exit status 0 ok, 1 something could not be changed, 2 bad input."""
    arguments = build_parser().parse_args(argv)
    level = logging.DEBUG if arguments.debug else logging.INFO
    if arguments.once or arguments.dry_run:
        level = logging.DEBUG if arguments.debug else logging.ERROR
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        if arguments.once or arguments.dry_run:
            return _single(arguments)
        from amp_nova.agent.service import Service

        Service(options.load(files=arguments.config_file)).run()
        return 0
    except ImportError as exc:
        missing = str(exc)
        if (exc.name or "").startswith("libvirt"):
            missing = f"libvirt's Python binding cannot be loaded ({exc}): install amp-nova[agent]"
        print(f"amp-nova-agent: {missing}", file=sys.stderr)
        return 2
    except AmpError as exc:
        print(f"amp-nova-agent: {exc}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
