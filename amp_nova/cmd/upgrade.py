# SPDX-License-Identifier: Apache-2.0
"""``amp-nova-status upgrade check``: whether this host is ready for the installed amp-nova."""

import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oslo_config import cfg
from oslo_log import log
from oslo_upgradecheck import upgradecheck
from oslo_upgradecheck.upgradecheck import Code, Result

from amp_nova import conf as options
from amp_nova.agent.publish.host_info import shared_pcpus
from amp_nova.agent.publish.host_warnings import NO_REPORTS
from amp_nova.cmd.agent import set_up_log
from amp_nova.cmd.arguments import nearest
from amp_nova.exceptions import AmpError, ConfigInvalid
from amp_nova.host.machine import load_topology
from amp_nova.model import cpulist

if TYPE_CHECKING:
    from amp_nova.agent.service import Service

TESTED = range(29, 35)
"""The major releases of Nova with which the filter and the weighers are tested."""
SPECS_SINCE = 32
"""The first major release of Nova whose domains name their flavor's extra specs."""
EPILOG = """Exit status 0: ready; 1: read the warnings first; 2: not ready.
example: amp-nova-status upgrade check --json"""


class Checks(upgradecheck.UpgradeCommands):
    """The checks, in the order in which they are shown."""

    def __init__(self, files: Sequence[str], folders: Sequence[str]) -> None:
        self._files = [*files, *(str(f) for d in folders for f in sorted(Path(d).glob("*.conf")))]
        self._service: Service | None = None

    def check_values(self) -> Result:
        """The agent would start: all that it needs can be made from the configuration."""
        try:
            conf = options.load(files=self._files, register=log.register_options)
            _check_log(conf)
            from amp_nova.agent.service import Service, check_trusted_path

            service = Service(conf, dry_run=True)
            if os.path.lexists(conf.agent.state_path):
                check_trusted_path(Path(conf.agent.state_path))
            self._service = service
        except AmpError as exc:
            return Result(Code.FAILURE, str(exc))
        except ImportError as exc:
            if not (exc.name or "").startswith("libvirt"):  # without libvirt, no agent runs here
                return Result(Code.FAILURE, f"{exc}: install amp-nova[agent]")
        return Result(Code.SUCCESS)

    def check_cycle(self) -> Result:
        """A cycle of the agent succeeds; nothing is written."""
        if self._service is None:
            return Result(Code.SUCCESS, "not tried: no agent would start here")
        try:
            self._service.once()
        except AmpError as exc:
            return Result(Code.WARNING, f"the agent could not work now: {exc}")
        return Result(Code.SUCCESS)

    def check_names(self) -> Result:
        """Every option in amp-nova's sections exists in this version."""
        if problems := [sentence for file in self._files for sentence in _unknown(file)]:
            return Result(Code.WARNING, "; ".join(problems))
        return Result(Code.SUCCESS)

    def check_machine(self) -> Result:
        """The core types are known, and the calibration in use can be read and was made here."""
        try:
            conf = options.load(files=self._files)
            topology = load_topology(conf)
            bookable = shared_pcpus(conf.nova.cpu_shared_set) or frozenset()
        except AmpError as exc:
            return Result(Code.FAILURE, str(exc))
        calibration = conf.topology.calibration_file
        if len(topology.core_types) > 1 and not os.path.exists(calibration):
            return Result(
                Code.WARNING,
                f"there is no calibration {calibration}: run 'amp-nova calibrate'",
            )
        warnings = [*topology.warnings]
        if absent := bookable - {p.id for p in topology.pcpus}:
            warnings.append(f"[nova] cpu_shared_set: there is no pCPU {cpulist.show(absent)} here")
        return Result(Code.WARNING if warnings else Code.SUCCESS, "; ".join(warnings) or None)

    def check_reports(self) -> Result:
        """Schedulers hear of this host."""
        if self._service is not None and not self._service.publishers.reports:
            return Result(Code.WARNING, NO_REPORTS)
        return Result(Code.SUCCESS)

    def check_nova(self) -> Result:
        """The Nova that is installed beside amp-nova, if any, is one that it works with."""
        try:
            version = importlib.metadata.version("nova")
        except importlib.metadata.PackageNotFoundError:
            return Result(Code.SUCCESS, "Nova is not installed in this Python environment")
        major = int(version.partition(".")[0])
        if major not in TESTED:
            return Result(
                Code.FAILURE if major < TESTED.start else Code.WARNING,
                f"Nova {version}: the filter and the weighers are tested with Nova {TESTED.start}"
                f" to {TESTED.stop - 1}; where nova-scheduler runs, test them first",
            )
        if major < SPECS_SINCE:
            return Result(
                Code.WARNING,
                f"Nova {version} does not pass extra specs to the agent: where an agent runs,"
                f" upgrade Nova to {SPECS_SINCE}.0 or newer, or set [agent] booking",
            )
        return Result(Code.SUCCESS)

    _upgrade_checks = (
        ("Configuration values", check_values),
        ("Configuration names", check_names),
        ("Core types and calibration", check_machine),
        ("A cycle of the agent", check_cycle),
        ("Reports to schedulers", check_reports),
        ("Nova", check_nova),
    )


def _check_log(conf: cfg.ConfigOpts) -> None:
    """Raise ``ConfigInvalid`` if the agent could not log; this makes no file, and logs nothing."""
    path = os.path.join(conf.log_dir or "", conf.log_file or "")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise ConfigInvalid(f"the log cannot be written: there is no directory {folder}; make it")
    if conf.log_file and os.path.isdir(path):
        raise ConfigInvalid(f"[DEFAULT] log_file: {path} is a directory; name a file")
    if (file := conf.log_config_append) and not os.path.isfile(file):
        raise ConfigInvalid(f"[DEFAULT] log_config_append: there is no file {file}; make it")
    instead = {"log_dir": None, "log_file": os.devnull, "log_config_append": None}
    for name, value in instead.items():
        conf.set_override(name, value)
    set_up_log(conf)


def _unknown(file: str) -> Iterator[str]:
    """A sentence for each option in a file that no longer exists or never did."""
    names_by_section = {group: {opt.name for opt in opts} for group, opts in options.list_opts()}
    sections: dict[str, dict[str, list[str]]] = {}
    with contextlib.suppress(cfg.Error, OSError, UnicodeError):  # ``check_values`` reports these
        cfg.ConfigParser(file, sections).parse()
    for section, values in sections.items():
        if section not in names_by_section:
            if hint := nearest(section, names_by_section):
                yield f"{file} has a section [{section}]{hint}"
        elif section != "placement":  # keystoneauth has options there that depend on others
            for name in sorted(values.keys() - names_by_section[section]):
                hint = nearest(name, names_by_section[section]) or ": delete it"
                yield f"{file} sets [{section}] {name}, which does not exist{hint}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks; exit status 0 (ready), 1 (warnings) or 2 (not ready, or bad input)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        print(f"amp-nova-status {importlib.metadata.version('amp-nova')}")
        return 0
    conf = cfg.ConfigOpts()
    files, folders = options.defaults()
    upgradecheck.register_cli_options(conf, Checks([], []))
    try:
        conf(
            words,
            project=options.PROJECT,
            prog="amp-nova-status",
            description="Tells whether this host is ready for the installed amp-nova.",
            epilog=EPILOG,
            default_config_files=files,
            default_config_dirs=folders,
        )
    except (cfg.Error, OSError, UnicodeError) as exc:
        why = f"a file is not UTF-8 text: {exc}" if isinstance(exc, UnicodeError) else str(exc)
        print(f"amp-nova-status: {' '.join(why.split())}", file=sys.stderr)
        return 2
    if conf.command.check != "check":  # oslo.upgradecheck accepts any word
        print(f"amp-nova-status: upgrade {conf.command.check}: write 'check'", file=sys.stderr)
        return 2
    upgradecheck.CONF = conf  # where ``--json`` is read, as by oslo.upgradecheck's own main
    code: int = Checks(conf.config_file, conf.config_dir).check()
    return code
