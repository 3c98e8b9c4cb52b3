"""A laboratory on one machine: real guests that count their work, and an honest slow core.

Used by ``amp-nova demo --libvirt``, the integration tests and the benchmarks; no agent imports it.
"""
