"""Options of the scheduler side, in nova.conf: ``[amp_scheduler]``."""

from oslo_config import cfg

GROUP = "amp_scheduler"

OPTS = [
    cfg.FloatOpt(
        "stale_after_s",
        default=180.0,
        min=1.0,
        help="""
Seconds after which a host's last report is stale. Agents report every ``[reports] interval_s`` (60)
seconds and whenever a booking changes.
""",
    ),
    cfg.StrOpt(
        "stale_report",
        default="refuse",
        choices=[
            ("refuse", "the host takes no booked instance until its agent reports again"),
            ("last", "use the last report, however old; without one, refuse"),
            ("ignore", "the host passes, and only Placement protects its capacity"),
        ],
        help="What a stale or missing report means for an instance that books capacity.",
    ),
    cfg.FloatOpt(
        "pending_s",
        default=120.0,
        min=0.0,
        help="""
Seconds for which an instance counts on the host it was sent to, even though the agent has not
reported it yet. Allow for the time from the scheduling decision to the start of the guest.
""",
    ),
    cfg.IntOpt(
        "repacked_hosts_max",
        default=50,
        min=0,
        help="""
Number of hosts per request for which the filter packs all bookings anew, because the free capacity
is sufficient but fragmented. Packing takes up to 20 ms per host, and the result is cached until the
host changes. Further hosts of this kind are refused.
""",
    ),
    cfg.FloatOpt(
        "amp_efficiency_weight_multiplier",
        default=1.0,
        help="""
Multiplier of ``AmpEfficiencyWeigher``. The same key in a host aggregate's metadata overrides it.
""",
    ),
    cfg.FloatOpt(
        "amp_scalability_weight_multiplier",
        default=1.0,
        help="""
Multiplier of ``AmpScalabilityWeigher``. The same key in a host aggregate's metadata overrides it.
""",
    ),
]


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """All options by group, for oslo-config-generator."""
    return [(GROUP, OPTS)]


def register(conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """Register the options with Nova's configuration, and return that."""
    conf.register_opts(OPTS, GROUP)
    return conf
