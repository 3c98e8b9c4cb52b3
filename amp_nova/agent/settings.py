# SPDX-License-Identifier: Apache-2.0
"""The control loop's settings from the options of ``[agent]``, on a host and in a scenario."""

from oslo_config import cfg

from amp_nova.agent.loop import LoopSettings
from amp_nova.control.context import Terms

TICK_S = {"cgroup": 0.05, "libvirt": 0.5}
"""Seconds between two samples of counted instructions, by writer: a write through libvirt costs
1000 times more."""


def read(conf: cfg.ConfigOpts, *, dry_run: bool = False) -> LoopSettings:
    """The loop's settings, as configured."""
    agent = conf.agent
    by_libvirt = agent.writer == "libvirt"
    return LoopSettings(
        Terms(
            agent.reserve_ratio,
            one_pcpu=agent.affinity == "pcpu",
            cycle_s=agent.cycle_s,
            tick_s=TICK_S[agent.writer],
            smt=agent.smt,
            one_limit=by_libvirt,
        ),
        agent.coefficients == "adaptive",
        dry_run=dry_run or agent.mode == "observe",
    )
