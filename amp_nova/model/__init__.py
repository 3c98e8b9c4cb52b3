# SPDX-License-Identifier: Apache-2.0
"""Value types shared by every stage: topology, readings, bandwidth limits, allocations.

This package decides nothing, and must not know what a flavor, a policy or a cgroup is.
"""
