"""The control loop's settings from the options of ``[agent]``, on a host and in a scenario."""

from oslo_config import cfg

from amp_nova.agent.fast_loop import IpsSettings
from amp_nova.agent.loop import Settings
from amp_nova.agent.state.policy_runner import PolicySettings
from amp_nova.control import own_coefficients
from amp_nova.control.context import Terms
from amp_nova.profiling.profiles import DEFAULT_MISS, ProfileSettings
from amp_nova.profiling.speedup import SPREAD_RATIO, MissCost


def read(conf: cfg.ConfigOpts, *, dry_run: bool = False) -> Settings:
    """The loop's settings, as configured."""
    agent = conf.agent
    miss = DEFAULT_MISS if agent.miss_cycles is None else MissCost(agent.miss_cycles, SPREAD_RATIO)
    return Settings(
        Terms(
            agent.reserve_ratio,
            one_pcpu=agent.affinity == "pcpu",
            idle_class=agent.best_effort_yields,
            ips_fallback=agent.ips_fallback,
            cycle_s=agent.cycle_s,
            smt=agent.smt,
        ),
        own_coefficients.choice(agent.coefficients, agent.coefficients_of),
        ProfileSettings(miss, agent.policy_interval_s),
        PolicySettings(agent.policy_interval_s, agent.policy_moves_max),
        IpsSettings(sp_s=agent.sp_s),
        agent.drift_repairs_max,
        dry_run,
    )
