"""``[counters]``: what counts the instructions of vCPUs."""

from oslo_config import cfg

GROUP = "counters"

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "source",
        default="auto",
        choices=[
            ("auto", "perf for guests under KVM, tcg for emulated ones"),
            ("perf", "hardware counters of vCPU threads, for guests under KVM"),
            ("tcg", "the QEMU plugin, for emulated guests"),
            ("none", "nothing; bookings of instructions per second cannot be verified"),
        ],
        help="""
What counts the instructions of vCPUs. ``auto`` suits every host; ``none`` keeps the agent from
opening performance counters, for example while you profile the host yourself.
""",
    ),
    cfg.FloatOpt(
        "retry_s",
        default=30.0,
        min=0.1,
        max=86400.0,
        help="Seconds between attempts to count the instructions of a vCPU after a failure.",
    ),
]
