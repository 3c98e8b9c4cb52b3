"""The options of ``/etc/amp-nova/amp-nova.conf``: one module per group, as in Placement.

Configuration is passed as a ``ConfigOpts``; there is no global configuration.
"""

import contextlib
import copy
import functools
import io
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from oslo_config import cfg

from amp_nova.conf import agent, counters, exporter, nova, placement, reports, topology
from amp_nova.exceptions import ConfigInvalid
from amp_nova.private_files import check_private

PROJECT = "amp-nova"
_CREDENTIALS = re.compile(r"(?mi)^(transport_url|\w*password|\w*secret|token)[ \t]*=[ \t]*\S")
_GROUPS = (agent, counters, exporter, nova, placement, reports, topology)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """All options by group, for oslo-config-generator."""
    return [(module.GROUP, module.OPTS) for module in _GROUPS]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register all options; invalid values raise ``ConfigInvalid`` when they are read."""
    for group, opts in list_opts():
        for opt in opts:
            registered: Any = copy.copy(opt)
            registered.type = functools.partial(_checked, group, opt)
            conf.register_opt(registered, group)


def default_files() -> list[str]:
    """The configuration file that every command and the agent read, if it exists."""
    return _once(cfg.find_config_files(PROJECT, PROJECT))


def default_folders() -> list[str]:
    """The folder of further configuration files, ``amp-nova.conf.d``, if it exists."""
    return _once(cfg.find_config_dirs(PROJECT, PROJECT))


def _once(paths: Sequence[str]) -> list[str]:
    """The paths without repetition.

    oslo.config looks for a file named after the project and for one named after the program. As
    these are the same, it would read the file twice, and list options would have every line twice.
    """
    return list(dict.fromkeys(paths))


def load(
    argv: Sequence[str] = (),
    files: Sequence[str] | None = None,
    register: Callable[[cfg.ConfigOpts], None] = lambda _conf: None,
) -> cfg.ConfigOpts:
    """Read and check the configuration.

    Args:
        argv: command-line arguments.
        files: the only files to read; ``None`` reads ``default_files()``.
        register: registers options of other libraries, before the files are read.

    Raises:
        ConfigInvalid: a file cannot be read, or a value is not allowed.
    """
    conf = cfg.ConfigOpts()
    register_opts(conf)
    register(conf)
    named = default_files() if files is None else list(files)
    folders = default_folders() if files is None else []
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            conf(
                list(argv),
                project=PROJECT,
                default_config_files=named,
                default_config_dirs=folders,
            )
    except (cfg.Error, OSError, UnicodeError, SystemExit) as exc:
        # oslo.config prints and exits if a file has a bad value for a command-line option (debug).
        text = said.getvalue() if isinstance(exc, SystemExit) else str(exc)
        where = f"{', '.join(named)}: " if isinstance(exc, UnicodeError) and named else ""
        reason = " ".join(text.split())
        if isinstance(exc, cfg.ConfigFilesPermissionDeniedError):
            reason += "; run this as root"  # they may hold credentials
        raise ConfigInvalid(f"the configuration cannot be read: {where}{reason}") from exc
    for group, opts in list_opts():
        for opt in opts:  # oslo.config checks a value when it is first used
            try:
                conf[group][opt.name]
            except cfg.Error as exc:  # a reference to an option that does not exist
                raise ConfigInvalid(f"[{group}] {opt.name} is not allowed: {exc}") from exc
    _check_credentials(conf)
    return conf


def _check_credentials(conf: cfg.ConfigOpts) -> None:
    """Refuse files that hold credentials and that others can read."""
    folders = [Path(name) for name in conf.config_dir or ()]
    inside = [path for folder in folders for path in sorted(folder.glob("*.conf"))]
    for path in [*map(Path, conf.config_file or ()), *inside]:
        try:
            if _CREDENTIALS.search(path.read_text()):
                check_private(path)
        except (OSError, ValueError) as exc:
            raise ConfigInvalid(f"the configuration cannot be used: {exc}") from exc


def _checked(group: str, opt: cfg.Opt, text: Any) -> Any:
    """The value of an option, given as text.

    oslo.config's own errors name neither the section nor the value, and it accepts NaN.
    """
    try:
        value = opt.type(text)
        if value is None and opt.default is not None:
            raise ValueError("it is empty")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("give a finite number")
    except ValueError as exc:
        raise ConfigInvalid(f"[{group}] {opt.name} = {text} is not allowed: {exc}") from exc
    return value
