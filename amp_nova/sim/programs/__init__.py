"""What the programs inside guests wait for, besides pCPUs.

A program decides when its vCPUs wait and how much work they do next; it knows neither pCPUs nor
core types.
"""
