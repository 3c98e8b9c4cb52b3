# SPDX-License-Identifier: Apache-2.0
"""Mechanisms that policies share: scores, core shares, deficits, virtual time, assignment.

Nothing here belongs to a single policy; the rule of a policy is in the policy's own module.
"""
