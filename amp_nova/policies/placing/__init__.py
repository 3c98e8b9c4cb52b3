"""Mechanics that policies share: scores, core shares, deficits, virtual time, assignment to pCPUs.

Nothing here belongs to one policy; a policy's own rule is in its own module.
"""
