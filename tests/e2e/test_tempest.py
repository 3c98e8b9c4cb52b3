# SPDX-License-Identifier: Apache-2.0
"""The Tempest plugin, as an operator runs it."""

import re
import subprocess

import pytest

from tools.cloud.layout import BIN, ETC, STATE


@pytest.mark.timeout(1200)
def test_tempest_proves_this_cloud(cloud, figure):
    """Every test of the plugin passes; none is skipped where there are two hosts."""
    options = ("--config-file", ETC / "tempest.conf", "--regex", "amp_nova", "--serial")
    done = subprocess.run(
        [BIN / "tempest", "run", *options], cwd=STATE, capture_output=True, text=True, check=False
    )

    totals = dict(re.findall(r"^ - (\w+): (\d+)", done.stdout, re.MULTILINE))
    figure(f"tempest run --regex amp_nova: {totals}")
    assert done.returncode == 0, done.stdout
    assert int(totals["Passed"]) > 0
    assert totals["Skipped"] == "0"
