"""``[nova]``: what the agent has to know about Nova's configuration on this host."""

from oslo_config import cfg

GROUP = "nova"

OPTS: list[cfg.Opt] = [
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
in Nova.
""",
    ),
]
