"""Options of the scheduler's side, in nova.conf: ``[amp_scheduler]``."""

from oslo_config import cfg

GROUP = "amp_scheduler"

OPTS = [
    cfg.FloatOpt(
        "stale_after_s",
        default=180.0,
        min=1.0,
        help="""
Seconds after which the last report of a host no longer counts as fresh. Agents report every
``[reports] interval_s`` (60) and whenever something changed.
""",
    ),
    cfg.StrOpt(
        "stale_report",
        default="refuse",
        choices=[
            ("refuse", "the host takes no booked instance until its agent reports again"),
            ("last", "judge by the last report, however old; without one, refuse"),
            ("ignore", "let the host pass: only Placement guards its capacity"),
        ],
        help="What a stale or missing report means for an instance that books capacity.",
    ),
    cfg.FloatOpt(
        "clock_skew_s",
        default=60.0,
        min=0.0,
        help="How far in the future a report's time may be before it is refused.",
    ),
    cfg.FloatOpt(
        "pending_s",
        default=120.0,
        min=0.0,
        help="""
How long an instance that was sent to a host counts there although the host's agent has not reported
it yet. It covers the time from the decision to the guest's start.
""",
    ),
    cfg.IntOpt(
        "repacked_hosts_max",
        default=50,
        min=0,
        help="""
For how many hosts per request the filter tries to pack all bookings anew, when a host has enough
capacity in sum and not in one piece. It takes up to 20 ms each; the answer is remembered until the
host changes. Other such hosts are refused.
""",
    ),
    cfg.FloatOpt(
        "amp_efficiency_weight_multiplier",
        default=1.0,
        help="""
Multiplier of ``AmpEfficiencyWeigher``; a host aggregate's metadata of the same name overrides it.
""",
    ),
    cfg.FloatOpt(
        "amp_scalability_weight_multiplier",
        default=1.0,
        help="""
Multiplier of ``AmpScalabilityWeigher``; a host aggregate's metadata of the same name overrides it.
""",
    ),
]


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """All options by group, for oslo-config-generator."""
    return [(GROUP, OPTS)]


def register(conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """Make the options known to Nova's configuration, and give that back."""
    conf.register_opts(OPTS, GROUP)
    return conf
