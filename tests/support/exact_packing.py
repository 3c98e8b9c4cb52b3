# SPDX-License-Identifier: Apache-2.0
"""Exact bin packing of small hosts by exhaustive search, to judge what the product admits.

Written from the rules and not from ``amp_nova.admission.packing``: a vCPU needs its booking over
the coefficient of its core type, and no pCPU is filled above 1. On a core whose threads slow each
other down, all threads count as slowed, or the core is whole: one thread has all bookings, at full
speed, and at least one of them is larger than what a slowed thread gives.
"""

from typing import NamedTuple

TOLERANCE = 1e-6


class Core(NamedTuple):
    """One physical core and what its threads are filled with."""

    type: str
    whole: bool
    filled: tuple[float, ...]


class Packing:
    """Finds places on one host; ``vcpus`` are bookings in reference cores."""

    def __init__(self, topology):
        self._types = {t.name: t for t in topology.core_types}
        self._cores, self._at = [], {}
        for pcpu in topology.pcpus:
            threads = topology.siblings_of(pcpu.id) if self._slows(pcpu.core_type) else ()
            threads = sorted({pcpu.id, *threads})
            if pcpu.id == threads[0]:
                for number, thread in enumerate(threads):
                    self._at[thread] = len(self._cores), number
                self._cores.append(Core(pcpu.core_type, False, (0.0,) * len(threads)))

    def fits(self, vcpus, fixed=()):
        """Whether ``vcpus`` fit beside what is ``fixed``: pairs of a pCPU and a booking."""
        cores = list(self._cores)
        # Large ones first: only they make a core whole, and it has to be empty then.
        for pcpu, refcores in sorted(fixed, key=lambda each: -each[1]):
            core, thread = self._at[pcpu]
            if (filled := self._put(cores[core], thread, refcores)) is None:
                return False
            cores[core] = filled
        return self._search(sorted(vcpus, reverse=True), tuple(sorted(cores)), set())

    def _search(self, vcpus, cores, failed):
        """Try every place of the first vCPU, but only one of several that are alike."""
        if not vcpus:
            return True
        if (len(vcpus), cores) in failed:
            return False
        for at, core in enumerate(cores):
            if core in cores[:at]:
                continue
            for thread, filled in enumerate(core.filled):
                if filled in core.filled[:thread]:
                    continue
                if (after := self._put(core, thread, vcpus[0])) is not None:
                    others = cores[:at] + cores[at + 1 :]
                    if self._search(vcpus[1:], tuple(sorted((*others, after))), failed):
                        return True
        failed.add((len(vcpus), cores))
        return False

    def _put(self, core, thread, refcores):
        """The core with one more booking, ``None`` if it has no place for that."""
        core_type, whole = self._types[core.type], core.whole
        need = refcores / core_type.coefficient
        if whole and not core.filled[thread]:
            return None  # the threads beside the one in use are closed
        if len(core.filled) > 1 and not whole:
            if need / core_type.smt_busy_factor <= 1.0 + TOLERANCE:
                need /= core_type.smt_busy_factor
            elif any(core.filled):
                return None
            else:
                whole = True
        filled = list(core.filled)
        filled[thread] = round(filled[thread] + need, 9)
        return Core(core.type, whole, tuple(filled)) if filled[thread] <= 1.0 + TOLERANCE else None

    def _slows(self, name):
        factor = self._types[name].smt_busy_factor
        return factor is not None and factor < 1.0
