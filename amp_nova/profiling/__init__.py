"""How much a vCPU gains from a fast core: counter windows, speedup estimates, I/O overlap.

Estimates carry a standard error. What to do with them is up to ``control`` and ``policies``.
"""
