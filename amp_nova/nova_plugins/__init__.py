"""What Nova loads: extra-spec validators, the filter, the weighers, and the host-report server.

Decisions are in ``admission`` and ``scheduling``; these modules translate Nova's objects.
"""
