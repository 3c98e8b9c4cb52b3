# SPDX-License-Identifier: Apache-2.0
"""Reads ``/etc/amp-nova/amp-nova.conf``, and declares the options of most of its sections.

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

from amp_nova.conf import agent, vendordata
from amp_nova.exceptions import ConfigInvalid
from amp_nova.private_files import check_private

PROJECT = "amp-nova"
_CREDENTIALS = re.compile(r"(?mi)^(transport_url|\w*password|\w*secret|token)[ \t]*=[ \t]*\S")

NOVA: list[cfg.Opt] = [
    cfg.StrOpt(
        "hypervisor_hostname",
        help="""
Name of this host in ``openstack hypervisor list``. By default it is what libvirt reports, as in
Nova.
""",
    ),
    cfg.StrOpt(
        "cpu_shared_set",
        help="""
pCPUs that new instances may use. Copy ``[compute] cpu_shared_set`` from nova.conf if it is set
there; otherwise the agent reports capacity that Nova cannot use. By default all online pCPUs, as
in Nova. In either case the agent leaves out those that ``AllowedCPUs=`` of ``machine.slice`` does.
""",
    ),
]
"""``[nova]``: what the agent has to know about Nova's configuration on this host."""

TOPOLOGY: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        "core_type",
        default=[],
        help="""
A core type of this host: its name, its pCPUs and, if known, its coefficient (speed over the
reference core), for example ``core_type = fast 0-7,16-23 1.85``. Write a line per type, naming
every online pCPU once. Set it only if ``amp-nova topology`` cannot determine the core types or is
wrong: these lines override everything that is detected. If the machine does not report which
hardware threads are siblings, as most virtual machines do not, add ``threads=2``: neighbours in the
list of pCPUs are one core. ``smt=0.55`` is the speed of a thread whose sibling is busy, relative to
its speed beside an idle one; it replaces what ``amp-nova calibrate`` measures, the mean over its
kernels. Give the lowest one measured if bookings must hold beside any work.
""",
    ),
    cfg.StrOpt(
        "reference",
        help="""
Name of the reference core type, whose coefficient is 1. By default it is the slowest core type of
this host. In a cloud of several hardware generations, name the slowest type of the whole cloud on
every host, and calibrate the others with ``amp-nova calibrate --reference FILE``.
""",
    ),
    cfg.StrOpt(
        "calibration_file",
        default="/var/lib/amp-nova/calibration.json",
        help="File written by ``amp-nova calibrate``: coefficients and nominal Ips per core type.",
    ),
    cfg.StrOpt(
        "root",
        default="/",
        help="""
Directory that holds ``/sys``, ``/proc`` and libvirt's ``/run``; set it to read a recorded machine.
""",
    ),
]
"""``[topology]``: core types and coefficients of this host."""

EXPORTER: list[cfg.Opt] = [
    cfg.BoolOpt("enabled", default=True, help="Serve Prometheus metrics over HTTP."),
    cfg.HostAddressOpt(
        "address",
        default="127.0.0.1",
        help="""
Address to serve metrics on. Set the host's management address so that Prometheus can reach it, and
with it ``cert_file``, ``key_file`` and ``client_ca_file``: metrics name instances and projects, so
do not serve them to everybody.
""",
    ),
    cfg.PortOpt("port", default=9178, help="Port to serve metrics on; 0 takes any free port."),
    cfg.StrOpt(
        "detail",
        default="instance",
        choices=["host", "instance", "vcpu"],
        help="What has series of its own: the host, also instances (about 15 each), also vCPUs.",
    ),
    cfg.ListOpt(
        "allowed_hosts",
        default=[],
        help="""
Names under which metrics are served, besides IP addresses, ``localhost`` and the host's own names:
those that Prometheus' targets and browsers use. A request for any other name gets status 421, so
that no web site can read metrics through a browser on the same network (DNS rebinding).
""",
    ),
    cfg.StrOpt(
        "cert_file",
        regex="^/",
        help="""
PEM file with the certificate, and the chain to its authority, to serve metrics with TLS. It is read
again every minute, as are ``key_file`` and ``client_ca_file``. By default there is no TLS.
""",
    ),
    cfg.StrOpt(
        "key_file",
        regex="^/",
        help="PEM file with the key of ``cert_file``. Its mode has to be 0640 or stricter.",
    ),
    cfg.StrOpt(
        "client_ca_file",
        regex="^/",
        help="""
PEM file with certificate authorities. If it is set, only clients with a certificate that one of
these signed are served. By default everybody who can reach the address is.
""",
    ),
]
"""``[exporter]``: the Prometheus endpoint."""

REPORTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "transport_url",
        secret=True,
        help="""
Message bus of Nova's schedulers; copy ``transport_url`` from their nova.conf. The agent reports
this host's free capacity there, and sends no reports without it. Options of the messaging driver,
such as TLS, go into the same sections as in nova.conf.
""",
    ),
    cfg.FloatOpt(
        "interval_s",
        default=60.0,
        min=1.0,
        max=86400.0,
        help="""
Seconds between two reports while nothing changes; a change is reported at once. Keep it below a
third of the scheduler's ``[amp_scheduler] stale_after_s``.
""",
    ),
]
"""``[reports]``: what the agent tells Nova's schedulers."""

PLACEMENT: list[cfg.Opt] = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="""
Keep a resource provider per core type in Placement, so that flavors that request
``CUSTOM_AMP_MREFCORE`` are claimed without races. It needs the credentials of nova.conf's
``[placement]`` in this section: ``auth_type``, ``auth_url``, ``username``, ``password``,
``project_name``, ``user_domain_name``, ``project_domain_name``, ``region_name``.
""",
    ),
]
"""``[placement]``: resource providers per core type."""


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """All options by group, for oslo-config-generator."""
    return [
        (agent.GROUP, agent.OPTS),
        ("exporter", EXPORTER),
        ("nova", NOVA),
        ("placement", PLACEMENT),
        ("reports", REPORTS),
        ("topology", TOPOLOGY),
        (vendordata.GROUP, vendordata.OPTS),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register all options; invalid values raise ``ConfigInvalid`` when they are read."""
    for group, opts in list_opts():
        for opt in opts:
            registered: Any = copy.copy(opt)
            registered.type = functools.partial(_checked, group, opt)
            conf.register_opt(registered, group)


def defaults() -> tuple[list[str], list[str]]:
    """What every command and the agent read: the configuration file, and the folder of more files.

    Each list is empty if there is none.
    """
    files, folders = cfg.find_config_files(PROJECT, PROJECT), cfg.find_config_dirs(PROJECT, PROJECT)
    # oslo.config looks for what is named after the project and after the program. As these are the
    # same, it would read each file twice, and list options would have every line twice.
    return list(dict.fromkeys(files)), list(dict.fromkeys(folders))


def load(
    argv: Sequence[str] = (),
    files: Sequence[str] | None = None,
    register: Callable[[cfg.ConfigOpts], None] = lambda _conf: None,
) -> cfg.ConfigOpts:
    """Read and check the configuration.

    ``argv``: command-line arguments; ``files``: the only files to read, instead of ``defaults()``;
    ``register``: registers options of other libraries, before the files are read. Raises
    ``ConfigInvalid`` if a file cannot be read, or a value is not allowed.
    """
    conf = cfg.ConfigOpts()
    register_opts(conf)
    register(conf)
    paths, folders = defaults() if files is None else (list(files), [])
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            conf(list(argv), PROJECT, default_config_files=paths, default_config_dirs=folders)
    except (cfg.Error, OSError, UnicodeError, SystemExit) as exc:
        # oslo.config prints and exits if a file has a bad value for a command-line option (debug).
        text = stderr.getvalue() if isinstance(exc, SystemExit) else str(exc)
        where = f"{', '.join(paths)}: " if isinstance(exc, UnicodeError) and paths else ""
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
