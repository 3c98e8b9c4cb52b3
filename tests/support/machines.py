# SPDX-License-Identifier: Apache-2.0
"""Facts about the CPUs of typical machines."""

from dataclasses import fields, replace

from amp_nova.hardware.designs import CpuFacts, CpuModel, MachineFacts, Speeds

RAPTOR_LAKE_P = {"vendor": "GenuineIntel", "family": 6, "model": 0xBA}
METEOR_LAKE = {"vendor": "GenuineIntel", "family": 6, "model": 0xAA}
ICE_LAKE_SP = {"vendor": "GenuineIntel", "family": 6, "model": 0x6A}
VERMEER = {"vendor": "AuthenticAMD", "family": 25, "model": 0x21}
STRIX_POINT = {"vendor": "AuthenticAMD", "family": 26, "model": 0x24}


def changed(cpu, **values):
    """The same CPU with other facts; those of its model and its speeds are given flat."""
    for part, kind in (("model", CpuModel), ("speeds", Speeds)):
        names = {f.name for f in fields(kind)} & values.keys()
        inner = {name: values.pop(name) for name in names}
        cpu = replace(cpu, **{part: replace(getattr(cpu, part), **inner)})
    return replace(cpu, **values)


def fact(number, **values):
    """One CPU, with all facts given flat."""
    return changed(CpuFacts(number), **values)


def cores(count, first=0, threads=1, package=0, **values):
    """``count`` equal cores, whose threads are numbered consecutively from ``first``."""
    cpus = []
    for core in range(count):
        ids = tuple(range(first + core * threads, first + (core + 1) * threads))
        for cpu in ids:
            cpus.append(fact(cpu, siblings=ids, package=package, core_id=first + core, **values))
    return cpus


def machine(*groups, pmus=(), offline=(), isolated=()):
    """The machine with these CPUs; there are no facts about ``offline`` ones."""
    gone = set(offline)
    cpus = []
    for cpu in sorted((c for g in groups for c in g), key=lambda c: c.id):
        siblings = tuple(s for s in cpu.siblings if s not in gone)
        alive = replace(cpu, siblings=siblings, isolated=cpu.id in isolated)
        cpus.append(CpuFacts(cpu.id, online=False) if cpu.id in gone else alive)
    lists = tuple((name, frozenset(ids) - gone) for name, ids in pmus)
    return MachineFacts(tuple(cpus), lists)


def without(facts, *names):
    """The same machine without these facts."""
    return altered(facts, **dict.fromkeys(names))


def altered(facts, **values):
    """The same machine with other facts about every CPU."""
    return replace(facts, cpus=tuple(changed(c, **values) for c in facts.cpus))


def intel_hybrid(pmus=False, **state):
    """Six P-cores with two threads, two of them favoured, and eight E-cores."""
    p = {"max_freq_khz": 5_000_000, "base_freq_khz": 1_900_000, "highest_perf": 64}
    favoured = {"max_freq_khz": 5_200_000, "base_freq_khz": 1_900_000, "highest_perf": 67}
    e = {"max_freq_khz": 3_900_000, "base_freq_khz": 1_400_000, "highest_perf": 39}
    lists = (("cpu_core", range(12)), ("cpu_atom", range(12, 20))) if pmus else ()
    return machine(
        cores(2, 0, 2, **p, **RAPTOR_LAKE_P),
        cores(1, 4, 2, **favoured, **RAPTOR_LAKE_P),
        cores(1, 6, 2, **p, **RAPTOR_LAKE_P),
        cores(1, 8, 2, **favoured, **RAPTOR_LAKE_P),
        cores(1, 10, 2, **p, **RAPTOR_LAKE_P),
        cores(8, 12, **e, **RAPTOR_LAKE_P),
        pmus=lists,
        **state,
    )


def meteor_lake(pmus=True):
    """Two low-power E-cores, eight E-cores, four P-cores; the kernel lists E and LP-E together."""
    lists = (("cpu_core", range(8)), ("cpu_atom", range(8, 18))) if pmus else ()
    return machine(
        cores(4, 0, 2, max_freq_khz=4_800_000, highest_perf=62, **METEOR_LAKE),
        cores(8, 8, max_freq_khz=3_800_000, highest_perf=38, **METEOR_LAKE),
        cores(2, 16, max_freq_khz=2_500_000, highest_perf=25, **METEOR_LAKE),
        pmus=lists,
    )


def arm_four():
    """Four designs, two of them of equal capacity."""
    arm = {"implementer": 0x41}
    return machine(
        cores(3, 0, capacity=280, max_freq_khz=2_016_000, part=0xD46, **arm),
        cores(2, 3, capacity=855, max_freq_khz=2_803_200, part=0xD4D, **arm),
        cores(2, 5, capacity=855, max_freq_khz=2_803_200, part=0xD47, **arm),
        cores(1, 7, capacity=1024, max_freq_khz=3_187_200, part=0xD4E, **arm),
    )


def arm_big_little():
    """Four Cortex-A53 that are clocked higher than the two Cortex-A73."""
    return machine(
        cores(2, 0, capacity=1024, max_freq_khz=1_800_000, implementer=0x41, part=0xD09),
        cores(4, 2, capacity=466, max_freq_khz=1_900_000, implementer=0x41, part=0xD03),
    )


def arm_prime():
    """Four Cortex-A55 and four Cortex-A76, one of which is clocked 17 % higher."""
    little = {"implementer": 0x51, "part": 0x805, "capacity": 261, "max_freq_khz": 1_785_600}
    gold = {"implementer": 0x51, "part": 0x804}
    return machine(
        cores(4, 0, **little),
        cores(3, 4, capacity=871, max_freq_khz=2_419_200, **gold),
        cores(1, 7, capacity=1024, max_freq_khz=2_841_600, **gold),
    )


def amd_ranked():
    """Sixteen equal cores that the firmware and cpufreq rank from 166 to 236."""
    ranks = [round(166 + i * 70 / 15) for i in range(16)]
    return machine(
        *(
            cores(1, 2 * i, 2, highest_perf=r, max_freq_khz=r * 21_500, **VERMEER)
            for i, r in enumerate(ranks)
        )
    )


def zen_dense():
    """Four Zen and eight Zen-c cores of one CPU model."""
    return machine(
        cores(4, 0, 2, highest_perf=196, max_freq_khz=5_157_000, **STRIX_POINT),
        cores(8, 8, 2, highest_perf=132, max_freq_khz=3_310_000, **STRIX_POINT),
    )


def server(**state):
    """Two packages of 32 equal cores with two threads, numbered the way servers do."""
    cpus = []
    for cpu in range(128):
        core = cpu % 64
        cpus.append(
            fact(
                cpu,
                siblings=(core, core + 64),
                package=core // 32,
                core_id=core % 32,
                llc=core // 32 * 32,
                capacity=1024,
                max_freq_khz=3_500_000,
                **ICE_LAKE_SP,
            )
        )
    return machine(cpus, **state)


def bare_vm(count=4):
    """A machine that reports nothing about its CPUs."""
    return MachineFacts(tuple(CpuFacts(i) for i in range(count)))
