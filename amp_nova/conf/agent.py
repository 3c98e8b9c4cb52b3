# SPDX-License-Identifier: Apache-2.0
"""``[agent]``: the control loop, bookings, the best-effort policy and I/O work."""

from oslo_config import cfg

GROUP = "agent"

_LOOP: list[cfg.Opt] = [
    cfg.FloatOpt(
        "cycle_s",
        default=1.0,
        min=0.05,
        max=10.0,  # the unit's WatchdogSec= is six times as long
        help="""
Seconds between two control cycles. Each cycle samples every vCPU and corrects its limits;
life-cycle events start an extra cycle at once. Raise it on hosts with hundreds of vCPUs if the
agent uses too much CPU time (see ``amp_cycle_duration_seconds``); start with 2.
""",
    ),
    cfg.StrOpt(
        "mode",
        default="enforce",
        choices=[
            ("enforce", "bookings are enforced"),
            ("observe", "everything is decided and exported, and nothing is changed"),
        ],
        help="""
Whether bookings are enforced. ``observe`` shows what enforcement would do, as metrics and in
``amp-nova explain``. An agent that is restarted with it first releases what it had enforced.
""",
    ),
    cfg.StrOpt(
        "writer",
        default="cgroup",
        choices=[
            ("cgroup", "each vCPU's own CPU cgroup, and the affinity of its thread"),
            ("libvirt", "libvirt's CPU tuning of the running domain; one quota per domain"),
        ],
        help="""
The interface that limits and affinities are written through. ``libvirt`` is for hosts where the
agent may not write cgroups, and for limits that ``virsh schedinfo`` and ``virsh vcpupin`` show. It
is a thousand times slower, cannot keep bookings that differ between the vCPUs of an instance, and
its values travel with a live migration. Run ``amp-nova release --all`` before you change it.
""",
    ),
    cfg.StrOpt(
        "libvirt_uri",
        default="qemu:///system",
        help="""
URI of the hypervisor whose domains the agent controls. Use the value of ``[libvirt]
connection_uri`` in nova.conf if that is set.
""",
    ),
    cfg.StrOpt(
        "state_path",
        default="/run/amp-nova",
        regex="^/",
        help="""
Directory for the control socket, locks, the lease, paused and released instances, and the records
of what the agent found before its first change. It must survive a restart of the agent, but not a
reboot.
""",
    ),
    cfg.FloatOpt(
        "lease_s",
        default=10.0,
        min=1.0,
        max=3600.0,
        help="""
Seconds after the last completed cycle until the guard (``amp-nova-guard``) applies the safe state:
bookings keep the limits of the core types they are on, and best effort gets back the pCPUs that the
agent found. The lease is never shorter than two cycles.
""",
    ),
]

_BOOKINGS: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        "booking",
        default=[],
        mutable=True,
        help="""
Bookings for servers whose Nova does not tell the agent what their flavors book (those started by
Nova before 32.0), and for domains that Nova does not manage. Each line is a shell pattern for the
flavor's name, or for the libvirt name, followed by extra specs, for example ``booking = m1.booked
amp:pref_core=0.5 amp:limit=hard``. The first line that matches applies. Domains whose metadata has
``amp:*`` keys are left out.
""",
    ),
    cfg.FloatOpt(
        "reserve_ratio",
        default=0.05,
        min=0.0,
        max=0.9,
        help="""
Share of the host's capacity that cannot be booked and is left to best effort and to the host. Every
best-effort vCPU gets at least 1 % of a pCPU; on a pCPU that is booked up to this share, the time
for that comes out of it. The default suffices for five best-effort vCPUs on a pCPU: raise it if
Nova may place more (``cpu_allocation_ratio``) or if the host runs other services. A booking that
needs more than the rest of a pCPU, up to a whole one, gets a pCPU without other bookings.
""",
    ),
    cfg.StrOpt(
        "smt",
        default="shared",
        choices=[
            ("shared", "a shared thread counts coefficient x smt_busy_factor"),
            ("whole_core", "every booking gets a core whose other threads stay free"),
            ("ignore", "every thread counts as a core; bookings may be missed"),
        ],
        help="""
How bookings use the hardware threads (SMT siblings) of a core. A busy sibling slows a thread down
to the factor that ``amp-nova calibrate`` measures. With ``shared``, a booking that needs more than
a shared thread gives still gets a whole core, and limits follow the recent speed of the threads.
A factor that nobody measured or declared counts as 0.5. Without SMT the modes do not differ.
""",
    ),
    cfg.StrOpt(
        "affinity",
        default="core_type",
        choices=[
            ("core_type", "all pCPUs of the core type; the kernel balances them"),
            ("pcpu", "the one pCPU that bin packing chose"),
        ],
        help="""
Which pCPUs a booked vCPU may use. ``core_type`` suits most hosts; ``pcpu`` avoids migrations
between cores for guests that depend on their caches. Where a busy sibling slows a thread down, it
is the one pCPU in any case.
""",
    ),
    cfg.StrOpt(
        "coefficients",
        default="fixed",
        choices=[
            ("fixed", "the calibrated coefficient of the core type: the CPU time is exact"),
            ("adaptive", "the measured speedup of each vCPU: its speed is the same everywhere"),
        ],
        help="""
How a booking in reference cores is converted to CPU time on a faster core. A memory-bound guest
gains less from a fast core than the calibration says: with ``fixed`` it runs slower there than on
the reference core; with ``adaptive`` it gets more of the fast core, if capacity is free.
``adaptive`` needs counters. A flavor's ``amp:coefficient`` takes precedence.
""",
    ),
]

_BEST_EFFORT: list[cfg.Opt] = [
    cfg.StrOpt(
        "policy",
        default="none",
        help="""
Name of the policy that places instances without a booking on fast and slow cores. The default
leaves them to the kernel, as on every host with a single core type. ``acfs`` evens out slowdowns;
on the workloads of its paper it has more throughput and less unfairness than equal shares. ``hsp``
and ``amp-fair`` are always installed, too. Of the Debian packages, python3-amp-nova-lab has the
other published policies; see the page on policies.
""",
    ),
    cfg.MultiStrOpt(
        "policy_parameter",
        default=[],
        help="""
A parameter of the policy as KEY=VALUE, for example ``unfairness_factor=1.1``. Repeat the line for
more parameters.
""",
    ),
]

_IO: list[cfg.Opt] = [
    cfg.StrOpt(
        "io_work",
        default="report",
        choices=[
            ("off", "not measured"),
            ("report", "measured and exported; nothing is moved"),
            ("slow", "I/O threads of domains insensitive to core speed run on slow cores"),
        ],
        help="""
What to do with the I/O threads of domains (QEMU's emulator, iothread and vhost threads) on a host
with several core types. A domain is insensitive to core speed while its Combined Usage (CPU
utilization of its I/O threads plus network utilization) is above 100 %. It is measured every 2.5
cycles, or every 10 if nothing is moved. ``slow`` frees fast-core time and may cost such domains
some throughput; one that loses more than a quarter is moved back. Before you set it, check
``amp_instance_combined_usage_ratio`` and ``amp_instance_io_kept_estimate_ratio``. To undo it, set
``report`` and restart the agent.
""",
    ),
    cfg.IntOpt(
        "io_line_rate_mbps",
        default=0,
        min=0,
        help="""
Bandwidth, in Mbit/s each way, of an interface without a limit in its domain's definition. 0 means
the speed of the fastest physical link that is up. Set it on hosts whose network drivers report no
speed, such as virtual machines (otherwise such domains have no Combined Usage and are left alone),
and if the network is limited elsewhere, for example by Neutron's QoS.
""",
    ),
]

OPTS = [*_LOOP, *_BOOKINGS, *_BEST_EFFORT, *_IO]
