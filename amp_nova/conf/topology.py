"""``[topology]``: core types and coefficients of this host."""

from oslo_config import cfg

GROUP = "topology"

OPTS: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        "core_type",
        default=[],
        help="""
A core type of this host: its name, its pCPUs and, if known, its coefficient (speed over the
reference core), for example ``core_type = fast 0-7,16-23 1.85``. Write a line per type, naming
every online pCPU once. Set it only if ``amp-nova topology`` cannot determine the core types or is
wrong: these lines override everything that is detected.
""",
    ),
    cfg.MultiStrOpt(
        "siblings",
        default=[],
        help="""
The pCPUs of one core with several hardware threads, for example ``siblings = 0-1``, one line for
each such core. Set it if the machine does not report siblings, as most virtual machines do not, and
calibrate afterwards.
""",
    ),
    cfg.MultiStrOpt(
        "smt_busy_factor",
        default=[],
        help="""
Speed of a hardware thread whose sibling is busy, relative to its speed beside an idle sibling, as
core type and factor, for example ``smt_busy_factor = fast 0.55``. It replaces the factor that
``amp-nova calibrate`` measures, the mean over its kernels; give the lowest one measured if bookings
must hold beside any work.
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
        help="Directory that holds ``/sys`` and ``/proc``; set it to read a recorded machine.",
    ),
]
