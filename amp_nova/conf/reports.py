"""``[reports]``: what the agent tells Nova's schedulers."""

from oslo_config import cfg

GROUP = "reports"

OPTS: list[cfg.Opt] = [
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
    cfg.FloatOpt(
        "answer_spread_s",
        default=1.0,
        min=0.0,
        max=3600.0,
        help="""
When a scheduler starts, it asks every agent for a report, and each answers after a random delay
of up to this many seconds. Use 30 or more with 10,000 hosts.
""",
    ),
]
