"""The control loop's settings from the options of ``[agent]``, on a host and in a scenario."""

from collections.abc import Iterable

from oslo_config import cfg

from amp_nova.agent.fast_loop import IpsSettings
from amp_nova.agent.loop import Settings
from amp_nova.agent.state.bookings import Choice
from amp_nova.agent.state.policy_runner import PolicySettings
from amp_nova.control.context import Terms
from amp_nova.exceptions import ConfigInvalid
from amp_nova.profiling.profiles import ProfileSettings
from amp_nova.profiling.speedup import SPREAD_RATIO, MissCost

SP_S = {"cgroup": 0.1, "libvirt": 0.5}
"""Default sampling period in seconds, by writer: a write through libvirt costs 1000 times more."""

_ADAPTIVE = {"fixed": False, "adaptive": True}


def choice(default: str, lines: Iterable[str]) -> Choice:
    """Whose bookings own coefficients convert: the default, and a line for each exception.

    Raises:
        ConfigInvalid: a line is not a pattern followed by ``fixed`` or ``adaptive``.
    """
    exceptions = []
    for line in lines:
        pattern, _, word = " ".join(line.split()).partition(" ")
        if word not in _ADAPTIVE:
            raise ConfigInvalid(
                f"[agent] coefficients_of = {line} is not valid: write PATTERN "
                f"{' or PATTERN '.join(_ADAPTIVE)}"
            )
        exceptions.append((pattern, _ADAPTIVE[word]))
    return Choice(_ADAPTIVE[default], tuple(exceptions))


def read(conf: cfg.ConfigOpts, *, dry_run: bool = False) -> Settings:
    """The loop's settings, as configured."""
    agent = conf.agent
    by_libvirt = agent.writer == "libvirt"
    miss = None if agent.miss_cycles is None else MissCost(agent.miss_cycles, SPREAD_RATIO)
    return Settings(
        Terms(
            agent.reserve_ratio,
            one_pcpu=agent.affinity == "pcpu",
            ips_fallback=agent.ips_fallback,
            cycle_s=agent.cycle_s,
            smt=agent.smt,
            one_limit=by_libvirt,
        ),
        choice(agent.coefficients, agent.coefficients_of),
        ProfileSettings(miss, agent.policy_interval_s),
        PolicySettings(agent.policy_interval_s, agent.policy_moves_max),
        IpsSettings(sp_s=agent.sp_s or SP_S[agent.writer]),
        agent.drift_repairs_max,
        dry_run,
    )
