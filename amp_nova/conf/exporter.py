"""``[exporter]``: the Prometheus endpoint."""

from oslo_config import cfg

GROUP = "exporter"

OPTS: list[cfg.Opt] = [
    cfg.BoolOpt("enabled", default=True, help="Serve Prometheus metrics over HTTP."),
    cfg.HostAddressOpt(
        "address",
        default="127.0.0.1",
        help="""
Address to serve metrics on. Set the host's management address so that Prometheus can reach it;
metrics name instances and projects, so do not serve them on a public network.
""",
    ),
    cfg.PortOpt("port", default=9178, help="Port to serve metrics on; 0 takes any free port."),
]
