# SPDX-License-Identifier: Apache-2.0
"""``amp-nova-agent``: the service on a compute node."""

import argparse
import faulthandler
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oslo_config import cfg
from oslo_log import log

from amp_nova import conf as options
from amp_nova.cmd.arguments import Version, add_config_file, one_sentence
from amp_nova.exceptions import (
    AmpError,
    CalibrationInvalid,
    ConfigInvalid,
    HypervisorUnavailable,
    Locked,
    TopologyUnknown,
)

if TYPE_CHECKING:
    from amp_nova.agent.service import Service

LOG = logging.getLogger(__name__)
START_BACK_OFF_S, START_BACK_OFF_MAX_S = 2.0, 30.0
"""Longest wait after the first failed start, and after many; below the unit's WatchdogSec."""

EXAMPLE = """example:
  amp-nova-agent --dry-run        show what it would change now, and why
  amp-nova-agent --once           run one cycle and exit
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``amp-nova-agent``."""
    parser = argparse.ArgumentParser(
        prog="amp-nova-agent",
        description="Deliver to instances the CPU capacity that they booked.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one_sentence(parser)
    parser.add_argument("--version", action=Version, nargs=0, help="show the version and exit")
    add_config_file(parser)
    parser.add_argument("--once", action="store_true", help="run one cycle and exit")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what one cycle would change, and exit"
    )
    parser.add_argument("--debug", action="store_true", help="log more, as [DEFAULT] debug does")
    return parser


def set_up_log(conf: cfg.ConfigOpts) -> None:
    """Set up logging from ``[DEFAULT]``; ``ConfigInvalid`` if it is not valid."""
    try:
        if not conf.log_file and not conf.log_dir:  # oslo.log's own default is standard output
            conf.set_default("use_stderr", True)
        log.setup(conf, options.PROJECT)
    except (cfg.Error, log.LogConfigError, OSError, RuntimeError, TypeError, ValueError) as exc:
        raise ConfigInvalid(f"logging cannot be set up from [DEFAULT]: {exc}; correct it") from exc


def _configure(arguments: argparse.Namespace, *, quiet: bool) -> cfg.ConfigOpts:
    """Load the configuration and set up logging; ``quiet``: log only errors."""
    argv = ["--debug"] if arguments.debug else []
    conf = options.load(argv, arguments.config_file, log.register_options)
    set_up_log(conf)
    if quiet and not conf.debug:
        logging.getLogger().setLevel(logging.ERROR)
    return conf


def _single(conf: cfg.ConfigOpts, *, dry_run: bool) -> int:
    from amp_nova.agent.operator.status import describe
    from amp_nova.agent.service import Service

    service = Service(conf, dry_run=dry_run)
    if dry_run:
        cycle = service.once()
    else:
        # A guard outlives this command, and whoever reads its output waits for the end of that.
        with service.in_control(quiet=True) as guarding:
            cycle = service.once()
            guarding.after(cycle)
    for warning in cycle.topology.warnings:
        print(f"amp-nova-agent: warning: {warning}", file=sys.stderr)
    print("\n".join(describe(cycle)) or "nothing to change")
    if cycle.outcome.observing and not dry_run:
        print("nothing was changed: [agent] mode = observe")
    for domain in cycle.domains:
        if domain.problem:
            print(f"{domain.domain.name}: {domain.problem}")
        for vcpu in domain.vcpus:
            if vcpu.entitlement.note:
                print(f"{domain.domain.name} vCPU {vcpu.reading.index}: {vcpu.entitlement.note}")
    return 1 if cycle.outcome.failures or cycle.outcome.weight_failures else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent.

    Exit status 0 (ok), 1 (a change failed, or the service cannot run now) or 2 (bad input).
    """
    arguments = build_parser().parse_args(argv)
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # systemd aborts a hung agent: say where it hung
    single = arguments.once or arguments.dry_run
    try:
        conf = _configure(arguments, quiet=single)
        if single:
            return _single(conf, dry_run=arguments.dry_run)
        service = _started(conf)
    except Locked as exc:  # --once beside a service
        return _failed(str(exc), 1)
    except (AmpError, ImportError) as exc:
        problem = exc.advised if isinstance(exc, AmpError) else str(exc)
        if isinstance(exc, ImportError) and (exc.name or "").startswith("libvirt"):
            problem = f"libvirt's Python binding cannot be loaded ({exc}): install amp-nova[agent]"
        return _failed(problem, 2)
    try:
        service.run()
    except AmpError as exc:  # another agent runs, or the state folder cannot be written
        return _failed(str(exc), 1)
    return 0


def _started(conf: cfg.ConfigOpts) -> "Service":
    """The service; retried while the core types, the calibration or libvirt cannot be read."""
    from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

    from amp_nova.agent.service import Service, Systemd

    systemd = Systemd()

    def failed(state: RetryCallState) -> None:
        problem = str(state.outcome.exception()) if state.outcome else ""
        log = LOG.error if state.attempt_number == 1 else LOG.debug
        log("%s; retrying", problem)
        systemd.report(f"cannot start yet: {problem}", alive=True)

    retrying = Retrying(
        retry=retry_if_exception_type((CalibrationInvalid, TopologyUnknown, HypervisorUnavailable)),
        wait=wait_random_exponential(multiplier=START_BACK_OFF_S, max=START_BACK_OFF_MAX_S),
        before_sleep=failed,
    )
    return retrying(Service, conf)


def _failed(problem: str, status: int) -> int:
    print(f"amp-nova-agent: {problem}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
