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
``web_config_file`` with it: metrics name instances and projects, so do not serve them to everybody.
""",
    ),
    cfg.PortOpt("port", default=9178, help="Port to serve metrics on; 0 takes any free port."),
    cfg.StrOpt(
        "web_config_file",
        regex="^/",
        help="""
Web configuration file with TLS certificates and basic-authentication users, in the format of
Prometheus' exporter toolkit: ``tls_server_config`` (``cert_file``, ``key_file``,
``client_ca_file``, ``client_auth_type``, ``min_version``) and ``basic_auth_users`` (bcrypt hashes
by name). Its mode has to be 0640 or stricter. Renewed certificates are used without a restart. By
default metrics are served without TLS to everybody who can reach the address.
""",
    ),
]
