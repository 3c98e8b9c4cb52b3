"""``[exporter]``: the Prometheus endpoint."""

from oslo_config import cfg

GROUP = "exporter"

OPTS: list[cfg.Opt] = [
    cfg.BoolOpt("enabled", default=True, help="Serve Prometheus metrics over HTTP."),
    cfg.HostAddressOpt(
        "address",
        default="127.0.0.1",
        help="""
Address to serve metrics on. Set the host's management address so that Prometheus can reach it, and
with it ``cert_file``, ``key_file`` and ``client_ca_file``: metrics name instances and projects, so
do not serve them to everybody.
""",
    ),
    cfg.PortOpt("port", default=9178, help="Port to serve metrics on; 0 takes any free port."),
    cfg.ListOpt(
        "allowed_hosts",
        default=[],
        help="""
Names under which metrics are served, besides IP addresses, ``localhost`` and the host's own names:
those that Prometheus' targets and browsers use. A request for any other name gets status 421, so
that no web site can read metrics through a browser on the same network (DNS rebinding).
""",
    ),
    cfg.StrOpt(
        "cert_file",
        regex="^/",
        help="""
PEM file with the certificate, and the chain to its authority, to serve metrics with TLS. It is read
again every minute, as are ``key_file`` and ``client_ca_file``. By default there is no TLS.
""",
    ),
    cfg.StrOpt(
        "key_file",
        regex="^/",
        help="PEM file with the key of ``cert_file``. Its mode has to be 0640 or stricter.",
    ),
    cfg.StrOpt(
        "client_ca_file",
        regex="^/",
        help="""
PEM file with certificate authorities. If it is set, only clients with a certificate that one of
these signed are served. By default everybody who can reach the address is.
""",
    ),
    cfg.StrOpt(
        "web_config_file",
        help="""
No longer supported: the agent does not start with it. Use ``cert_file``, ``key_file`` and
``client_ca_file`` instead, or a reverse proxy if clients have passwords.
""",
    ),
]
