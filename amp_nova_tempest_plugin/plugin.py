# SPDX-License-Identifier: Apache-2.0
"""What Tempest loads by the entry point."""

from pathlib import Path

from oslo_config import cfg
from tempest.test_discover import plugins

from amp_nova_tempest_plugin import config


class AmpNovaTempestPlugin(plugins.TempestPlugin):
    """Tells Tempest where the tests are, and which options they have."""

    def load_tests(self) -> tuple[str, str]:
        """The folder of the tests, and the one from which they are imported."""
        folder = Path(__file__).parent
        return str(folder / "tests"), str(folder.parent)

    def register_opts(self, conf: cfg.ConfigOpts) -> None:
        """Add ``[amp_nova]`` to tempest.conf."""
        conf.register_group(config.GROUP)
        conf.register_opts(config.OPTIONS, config.GROUP)

    def get_opt_lists(self) -> list[tuple[str, list[cfg.Opt]]]:
        """The same options, for Tempest's sample configuration."""
        return [(config.GROUP.name, config.OPTIONS)]
