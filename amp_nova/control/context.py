"""The inputs of entitlements: the operator's terms, the packing, and recent measurements."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_nova.control.conversion import Lately
from amp_nova.control.homes import Packed
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import Topology


@dataclass(frozen=True, slots=True)
class Terms:
    """How the operator wants bookings enforced.

    ``one_pcpu``: keep a vCPU on the pCPU it was packed onto rather than on any of its core type;
    ``ips_fallback``: what limits a vCPU whose instructions are not counted, ``nominal`` (its
    nominal Ips) or ``none``; ``cycle_s``: the time in which banked time is spent; ``enforce``: if
    false, bookings are only accounted; ``smt``: how bookings share the hardware threads of a core
    (``effective_speed.SMT_MODES``); ``one_limit``: all vCPUs of an instance have the same limit.
    """

    reserve_ratio: float = 0.0
    one_pcpu: bool = False
    ips_fallback: str = "nominal"
    cycle_s: float = 1.0
    enforce: bool = True
    smt: str = "shared"
    one_limit: bool = False


@dataclass(frozen=True, slots=True)
class Current:
    """Inputs of one vCPU's limit that change from cycle to cycle.

    ``bandwidth``: the limit in force; ``banked_ref_s``: what it may spend in a burst;
    ``ips_limit``: the Ips controller's last decision, ``None`` if it does not govern the vCPU yet;
    ``lately``: how fast its pCPU was, ``None`` if that always equals the coefficient.
    """

    bandwidth: Bandwidth | None = None
    banked_ref_s: float = 0.0
    ips_limit: Bandwidth | None = None
    lately: Lately | None = None


UNLIMITED = Current()


@dataclass(frozen=True, slots=True)
class Context:
    """The inputs of all entitlements of one host.

    ``topology``: the topology used for packing (``effective_speed.for_admission``);
    ``kept_free_before``: the pCPUs that the last packing kept free.
    """

    topology: Topology
    terms: Terms
    packed: Packed
    current: Mapping[VcpuKey, Current] = field(default_factory=dict)
    kept_free_before: frozenset[int] = frozenset()
