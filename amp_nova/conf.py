"""Every option of ``/etc/amp-nova/amp-nova.conf``, with help written for operators."""

from collections.abc import Sequence

from oslo_config import cfg

from amp_nova import conf_values
from amp_nova.exceptions import ConfigInvalid

HOUR_S, DAY_S = 3600.0, 86_400.0

TOPOLOGY_OPTS = [
    cfg.MultiStrOpt(
        "core_type",
        default=[],
        help="""
One core type of this host: a name, its pCPUs and, if known, its coefficient (speed over the
reference core), for example ``core_type = fast 0-7,16-23 1.85``. Repeat the line for every type;
all online pCPUs must be named once. Set it only when ``amp-nova topology`` cannot tell or is wrong:
what is said here wins over everything that is detected.
""",
    ),
    cfg.StrOpt(
        "reference",
        help="""
Name of the reference core, the one whose coefficient is 1. Default: this host's slowest core type.
In a cloud of several generations it is the slowest type of the whole cloud: calibrate every other
host with ``amp-nova calibrate --reference FILE``.
""",
    ),
    cfg.StrOpt(
        "calibration_file",
        default="/var/lib/amp-nova/calibration.json",
        help="What ``amp-nova calibrate`` wrote: coefficients and nominal Ips per core type.",
    ),
    cfg.StrOpt("root", default="/", help="Where ``/sys`` and ``/proc`` are found; for recordings."),
]

AGENT_OPTS = [
    cfg.FloatOpt(
        "cycle_s",
        default=1.0,
        min=0.05,
        max=HOUR_S,
        help="Seconds between two control cycles. Life-cycle events start one at once besides.",
    ),
    cfg.StrOpt("libvirt_uri", default="qemu:///system", help="The hypervisor to look after."),
    cfg.StrOpt(
        "libvirt_run_path",
        default="/run/libvirt/qemu",
        regex="^/",
        help="Where libvirt keeps the pid files of its QEMU processes.",
    ),
    cfg.FloatOpt(
        "libvirt_timeout_s",
        default=5.0,
        min=0.1,
        max=HOUR_S,
        help="How long one call to libvirt may take before the domain is left for a later cycle.",
    ),
    cfg.FloatOpt(
        "resync_s",
        default=10.0,
        min=0.1,
        max=DAY_S,
        help="Seconds between two complete listings of the domains, for events that got lost.",
    ),
    cfg.StrOpt(
        "state_path",
        default="/run/amp-nova",
        regex="^/",
        help="Folder of the control socket, the holds (pause, release), locks, what was learnt.",
    ),
    cfg.MultiStrOpt(
        "booking",
        default=[],
        help="""
Booking of domains that carry no ``amp:*`` key in their Nova metadata (instances started before Nova
32.0, or not Nova's at all): a shell pattern on the libvirt name, then extra specs, for example
``booking = web-* amp:pref_core=0.5 amp:limit=hard``. The first line that matches counts.
""",
    ),
    cfg.FloatOpt(
        "reserve_ratio",
        default=0.0,
        min=0.0,
        max=0.9,
        help="Share of every pCPU that is never booked: room for the host's own work.",
    ),
    cfg.StrOpt(
        "affinity",
        default="core_type",
        choices=[
            ("core_type", "every pCPU of the core type, the kernel balances"),
            ("pcpu", "the one pCPU that the packing chose"),
        ],
        help="How narrowly a booked vCPU is kept.",
    ),
    cfg.StrOpt(
        "coefficients",
        default="fixed",
        choices=[
            ("fixed", "those of the core types, as calibrated: CPU time is exact"),
            ("adaptive", "each vCPU's own, where counters tell: its speed is the same everywhere"),
        ],
        help="""
Which coefficient a booking in reference cores is converted with. A memory-bound guest gains less
from a fast core than the calibration says; with ``fixed`` it is slower there than on the reference
core, with ``adaptive`` it gets more of the fast core, as far as that is free.
""",
    ),
    cfg.MultiStrOpt(
        "coefficients_of",
        default=[],
        help="""
Exceptions from ``coefficients``: a shell pattern on the libvirt name (or a UUID), then ``fixed`` or
``adaptive``, for example ``coefficients_of = instance-0000002a adaptive``. The first line that
matches counts.
""",
    ),
    cfg.FloatOpt(
        "miss_cycles",
        min=1.0,
        max=1e6,
        help="""
Cycles that a last-level cache miss costs on the slowest core type of this platform, for estimates
from cache misses. Default: a rough guess, which instances that run on two core types correct.
""",
    ),
    cfg.StrOpt(
        "ips_controller",
        default="default",
        choices=[
            ("default", "holds the booking: feeds forward, pays back what it missed"),
            ("printed", "the published rule, which does not hold it; for comparison"),
            ("printed-decay", "the same rule in its other reading"),
        ],
        help="What keeps bookings of instructions per second (``amp:ips``).",
    ),
    cfg.FloatOpt(
        "sp_s",
        default=0.1,
        min=0.05,
        max=1.0,
        help="""
Sampling period of bookings of instructions per second. Counters of these vCPUs are read eight times
in it, so that a change of what the guest does is noticed; longer periods cost less and miss more.
""",
    ),
    cfg.StrOpt(
        "ips_fallback",
        default="nominal",
        choices=[
            ("nominal", "the nominal instructions per second of its core type"),
            ("none", "nothing"),
        ],
        help="""
What limits a vCPU that books instructions per second where nothing counts them. The booking is then
reported as unverifiable, whatever is set here.
""",
    ),
    cfg.BoolOpt(
        "best_effort_yields",
        default=True,
        help="""
Whether instances without a booking run only in what bookings leave, as long as there are bookings
on the host (``cpu.idle`` of the instance's cgroup). Without it, neighbours that want all they can
get take their equal share, and a booking above that share is not kept. On a host where bookings may
use whole pCPUs, set ``reserve_ratio`` to leave best effort something at all times. Instances whose
flavor has ``quota:cpu_shares`` are left as they are.
""",
    ),
    cfg.StrOpt(
        "policy",
        default="acfs",
        help="""
Who of the instances without a booking has the fast cores: a policy's name, see the page on
policies. ``none`` leaves it to the kernel, as on every host with one core type. The default evens
out slowdowns: on the workloads of its paper it has both more throughput and less unfairness than
equal shares.
""",
    ),
    cfg.MultiStrOpt(
        "policy_parameter",
        default=[],
        help="A parameter of the policy, such as ``unfairness_factor=1.1``; repeat for more.",
    ),
    cfg.FloatOpt(
        "policy_interval_s",
        default=2.5,
        min=0.1,
        max=HOUR_S,
        help="""
Seconds between two decisions of the policy, each in the next cycle that is due. One more is made in
between when a vCPU falls asleep on a fast core that another one could use.
""",
    ),
    cfg.IntOpt(
        "policy_moves_max",
        min=2,
        help="""
How many vCPUs the decisions of an interval may move from one core type to another; those without a
place yet do not count. A change of places takes two. Default: as many as the policy asks for.
""",
    ),
    cfg.IntOpt(
        "drift_repairs_max",
        default=3,
        min=0,
        help="""
How often within a minute a quota or affinity that somebody else changed is put right. After that
the agent keeps its hands off the instance for five minutes and says so, rather than fight.
""",
    ),
    cfg.StrOpt(
        "io_work",
        default="report",
        choices=[
            ("off", "not looked at"),
            ("report", "measured and exported; nothing is moved"),
            ("slow", "the I/O threads of domains insensitive to core speed are kept on slow cores"),
        ],
        help="""
What happens to the I/O work of domains (the emulator, iothread and vhost threads of QEMU) on a host
with several core types. A domain is insensitive
while its Combined Usage (CPU utilization of its I/O threads plus utilization of its bandwidth) is
above 100 %. ``slow`` frees fast-core time and may cost such domains some of their throughput: look
at ``amp_instance_combined_usage_ratio`` and ``amp_instance_io_kept_estimate_ratio`` first. A domain
that loses more than a quarter is taken back. Set it back to ``report`` and restart the agent to
undo it.
""",
    ),
    cfg.StrOpt(
        "io_sensitive",
        default="as_defined",
        choices=[
            ("as_defined", "on all pCPUs that the domain's definition leaves them"),
            ("fast", "on the fast cores among those"),
        ],
        help="With ``io_work = slow``: where the I/O threads of all other domains are kept.",
    ),
    cfg.IntOpt(
        "io_line_rate_mbps",
        default=0,
        min=0,
        help="""
Bandwidth that an interface without a limit in its domain's definition has, in Mbit/s each way. 0
takes the speed of the fastest physical link that is up. Where no driver tells that, as in virtual
machines, such domains have no Combined Usage and are left alone.
""",
    ),
]

COUNTERS_OPTS = [
    cfg.StrOpt(
        "source",
        default="auto",
        choices=[
            ("auto", "whatever counts: perf for guests under KVM, tcg for emulated ones"),
            ("perf", "the hardware counters of vCPU threads, for guests under KVM only"),
            ("tcg", "the plugin of QEMU, for emulated guests only"),
            ("none", "nothing; bookings of instructions per second cannot be verified then"),
        ],
        help="What counts the instructions of vCPUs.",
    ),
    cfg.FloatOpt(
        "retry_s",
        default=30.0,
        min=0.1,
        max=DAY_S,
        help="Seconds until a vCPU that could not be counted is tried again.",
    ),
]

EXPORTER_OPTS = [
    cfg.BoolOpt("enabled", default=True, help="Serve Prometheus metrics."),
    cfg.HostAddressOpt("address", default="127.0.0.1", help="Address to serve metrics on."),
    cfg.PortOpt("port", default=9178, help="Port to serve metrics on; 0 takes any free one."),
]

NOVA_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "hypervisor_hostname",
        help="""
This host's name in ``openstack hypervisor list``. Default: what libvirt calls it, as Nova does.
""",
    ),
    cfg.StrOpt(
        "cpu_shared_set",
        help="""
The pCPUs that new instances may use: the same as ``[compute] cpu_shared_set`` in nova.conf.
Default: all that are online, as in Nova.
""",
    ),
]

REPORT_OPTS = [
    cfg.StrOpt(
        "transport_url",
        secret=True,
        help="""
Nova's message bus, as in nova.conf: the agent tells the schedulers there what room this host has.
Without it, no reports. Options of the driver (TLS and the like) may stand beside, as in nova.conf.
""",
    ),
    cfg.FloatOpt(
        "interval_s",
        default=60.0,
        min=1.0,
        max=DAY_S,
        help="Seconds between two reports when nothing changes; what changes is reported at once.",
    ),
    cfg.FloatOpt(
        "answer_spread_s",
        default=1.0,
        min=0.0,
        max=HOUR_S,
        help="""
A scheduler that starts asks all agents; each answers after a random time up to this. With 10 000
hosts take 30 or more.
""",
    ),
]

PLACEMENT_OPTS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="""
Keep a provider per core type in Placement, so that flavors that ask for ``CUSTOM_AMP_MREFCORE`` are
claimed race-free. Needs credentials beside it, as in nova.conf's ``[placement]``: ``auth_type``,
``auth_url``, ``username``, ``password``, ``project_name``, ``user_domain_name``,
``project_domain_name``, ``region_name``.
""",
    ),
]

GROUPS: dict[str, list[cfg.Opt]] = {
    "topology": TOPOLOGY_OPTS,
    "agent": AGENT_OPTS,
    "counters": COUNTERS_OPTS,
    "exporter": EXPORTER_OPTS,
    "nova": NOVA_OPTS,
    "placement": PLACEMENT_OPTS,
    "reports": REPORT_OPTS,
}


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """All options by group, for oslo-config-generator."""
    return list(GROUPS.items())


def load(argv: Sequence[str] = (), files: Sequence[str] | None = None) -> cfg.ConfigOpts:
    """Read the configuration; ``files=None`` looks in the usual places, ``/etc/amp-nova`` first.

    Raises:
        ConfigInvalid: a file cannot be read, or a value in it is not what it has to be.
    """
    named = None if files is None else list(files)
    try:
        conf = conf_values.parsed(GROUPS, argv, named)
    except (cfg.Error, OSError, UnicodeError) as exc:
        reason = " ".join(str(exc).split())
        if isinstance(exc, UnicodeError) and named:
            reason = f"{', '.join(named)}: {reason}"
        raise ConfigInvalid(f"the configuration cannot be read: {reason}") from exc
    for group, opts in GROUPS.items():
        for opt in opts:
            if (remedy := conf_values.wrong(conf, group, opt)) is not None:
                value = conf_values.written(group, opt.name, argv, named)
                raise ConfigInvalid(f"[{group}] {opt.name}{value} is not allowed: {remedy}")
    return conf
