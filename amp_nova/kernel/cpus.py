# SPDX-License-Identifier: Apache-2.0
"""What the kernel counts for each CPU (``/proc/stat``, proc_stat(5))."""

import os
import re
from pathlib import Path

from amp_nova.kernel import files

_CPU = re.compile(r"^cpu(\d{1,9})(?: \d+){3} (\d{1,19}) (\d{1,19})\b", re.ASCII | re.MULTILINE)
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def idle_ns(root: Path = Path("/")) -> dict[int, int]:
    """The time that each online CPU has been idle, waiting for I/O or not.

    The kernel measures it from one event to the next. What it counts as busy may be sampled at
    timer ticks instead, at which limits refill. Empty if that cannot be read.
    """
    try:
        found = _CPU.findall(files.text(root / "proc/stat"))
    except OSError:
        return {}
    return {int(cpu): (int(idle) + int(iowait)) * TICK_NS for cpu, idle, iowait in found}
