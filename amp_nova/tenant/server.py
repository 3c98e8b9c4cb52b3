# SPDX-License-Identifier: Apache-2.0
"""``amp-nova-vendordata``: tells servers and their owners what they book and get."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg
from oslo_log import log

from amp_nova import conf as options
from amp_nova.cmd.arguments import Version, add_config_file, one_sentence
from amp_nova.exceptions import AmpError, ConfigInvalid, sentence
from amp_nova.http_server import HttpServer


def configured(files: Sequence[str] | None = None) -> tuple[cfg.ConfigOpts, Any]:
    """The configuration, and the application behind Keystone's filter, and the health check."""
    try:
        from keystoneauth1.exceptions import ClientException
        from keystonemiddleware import auth_token
        from oslo_middleware import healthcheck

        from amp_nova.tenant.application import Application
        from amp_nova.tenant.prometheus import ServerFigures
    except ImportError as exc:
        raise ConfigInvalid(f"{exc}: install amp-nova[vendordata]") from exc
    conf = options.load(files=files, register=log.register_options)
    if not conf.log_file and not conf.log_dir:
        conf.set_default("use_stderr", True)
    log.setup(conf, options.PROJECT)
    inner = Application(conf, ServerFigures(conf.vendordata).figures)
    for group, opts in auth_token.list_opts():
        conf.register_opts(opts, group)
    try:
        if not conf.keystone_authtoken.auth_type and not conf.keystone_authtoken.auth_section:
            raise ValueError("auth_type is not set: give the credentials of a service user")
        settings = {"oslo_config_config": conf, "delay_auth_decision": False}
        guarded = auth_token.AuthProtocol(inner, settings)
    except (ClientException, ValueError, cfg.Error) as exc:
        raise ConfigInvalid(f"[keystone_authtoken] cannot be used: {exc}") from exc
    health = healthcheck.Healthcheck(None, conf)

    def application(request: dict[str, Any], start: Any) -> Any:
        return (health if request.get("PATH_INFO") == "/healthcheck" else guarded)(request, start)

    return conf, application


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; exit status 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="amp-nova-vendordata",
        description="Tell servers, through Nova, and their owners what they book and get.",
        epilog="example: amp-nova-vendordata --config-file /etc/amp-nova/amp-nova.conf",
    )
    one_sentence(parser)
    parser.add_argument("--version", action=Version, nargs=0, help="show the version and exit")
    add_config_file(parser)
    arguments = parser.parse_args(argv)
    try:
        conf, application = configured(arguments.config_file)
        from amp_nova.tenant.application import BODY_BYTES_MAX

        address = conf.vendordata.address, conf.vendordata.port
        server = HttpServer(address, application, body_max=BODY_BYTES_MAX)
    except (AmpError, log.LogConfigError, OSError) as exc:
        print(sentence(f"amp-nova-vendordata: {exc}"), file=sys.stderr)
        return 2
    with contextlib.suppress(KeyboardInterrupt):
        server.run(lambda: True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
