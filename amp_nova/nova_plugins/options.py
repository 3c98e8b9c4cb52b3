# SPDX-License-Identifier: Apache-2.0
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
    cfg.StrOpt(
        "transport_url",
        secret=True,
        help="""
The message bus of the agents' reports, if it is not Nova's own: the ``[reports] transport_url`` of
the agents, as in rabbit://USER:PASSWORD@HOST:PORT/VHOST. With a virtual host and a user for this
purpose, no compute node needs access to the bus of Nova's API and schedulers.
""",
    ),
    cfg.StrOpt(
        "metrics_directory",
        default="",
        help="""
Directory of node_exporter's textfile collector (``--collector.textfile.directory``), to which each
scheduler worker writes its metrics every 15 seconds. Empty: no metrics.
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
