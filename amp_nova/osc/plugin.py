# SPDX-License-Identifier: Apache-2.0
"""What OpenStackClient loads: see "plugins" in its contributor documentation."""

import argparse
from typing import Any

from amp_nova.osc.cloud import Cloud

DEFAULT_API_VERSION = "1"
API_VERSION_OPTION = "os_amp_api_version"
API_NAME = "amp"
API_VERSIONS = ("1",)


def make_client(instance: Any) -> Cloud:
    """The client that commands find as ``client_manager.amp``."""
    return Cloud(instance.sdk_connection)


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """There are no global options."""
    return parser
