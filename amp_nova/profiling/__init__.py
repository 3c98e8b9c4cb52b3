# SPDX-License-Identifier: Apache-2.0
"""How much a vCPU gains from a fast core: counter windows, speedup estimates, I/O overlap.

Estimates carry a standard error. ``control`` and ``policies`` decide what to do with them.
"""
