# SPDX-License-Identifier: Apache-2.0
"""``amp-nova selftest`` on this machine, for a moment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lab import FAST, SLOW
from tests.support.programs import until

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or bool({FAST, SLOW} - os.sched_getaffinity(0)),
    reason="needs root and CPUs 0 and 1",
)


def test_each_check_has_a_verdict_and_nothing_is_left(tmp_path):
    """Other tests run beside it: a limit is never exceeded, however little there is to get."""
    config = tmp_path / "amp-nova.conf"
    config.touch(0o640)
    config.write_text(f"[topology]\ncore_type = fast {FAST} 2.0\ncore_type = slow {SLOW} 1.0\n")
    command = Path(sys.executable).with_name("amp-nova")
    words = ["selftest", "--seconds", "1", "-f", "json", "--config-file", str(config)]
    done = subprocess.run([command, *words], capture_output=True, text=True, check=False)

    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    checks = {(c["check"], c["core_type"]): c for c in found["checks"]}
    for key in (("share", "slow"), ("share", "fast"), ("share after a move", "fast")):
        assert 0.1 < checks[key]["measured"] <= 1.05 * checks[key]["promised"]
    fast = checks["coefficient", "fast"]
    assert (fast["promised"], fast["verdict"]) == (2.0, "cannot be judged: it is declared")
    assert fast["measured"] < 1.5, "what was measured, not what was declared"
    assert checks["limit without an agent", "fast"]["verdict"] == "kept"
    assert os.uname().nodename not in done.stdout
    until(
        lambda: not list(Path("/sys/fs/cgroup").glob("**/amp-nova-[0-9]*-*")), 10, "the groups' end"
    )
