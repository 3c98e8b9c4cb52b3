"""Value types shared by every stage: topology, readings, bandwidth limits, allocations.

Nothing here decides anything. The package must not know what a flavor, a policy or a cgroup is.
"""
