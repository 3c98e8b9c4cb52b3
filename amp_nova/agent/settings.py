"""The control loop's settings from the options of ``[agent]``, on a host and in a scenario."""

from oslo_config import cfg

from amp_nova.agent.fast_loop import IpsSettings
from amp_nova.agent.loop import Settings
from amp_nova.agent.state.policy_runner import PolicySettings
from amp_nova.control.context import Terms
from amp_nova.profiling.profiles import ProfileSettings

SP_S = {"cgroup": 0.1, "libvirt": 0.5}
"""Default sampling period in seconds, by writer: a write through libvirt costs 1000 times more."""


def read(conf: cfg.ConfigOpts, *, dry_run: bool = False) -> Settings:
    """The loop's settings, as configured."""
    agent = conf.agent
    by_libvirt = agent.writer == "libvirt"
    return Settings(
        Terms(
            agent.reserve_ratio,
            one_pcpu=agent.affinity == "pcpu",
            cycle_s=agent.cycle_s,
            smt=agent.smt,
            one_limit=by_libvirt,
        ),
        agent.coefficients == "adaptive",
        ProfileSettings(interval_s=agent.policy_interval_s),
        PolicySettings(agent.policy_interval_s),
        IpsSettings(sp_s=agent.sp_s or SP_S[agent.writer]),
        agent.drift_repairs_max,
        dry_run or agent.mode == "observe",
    )
