"""Who gets the fast cores that bookings leave: one module per published policy.

``api`` is the interface a policy implements, ``placing`` the mechanics that policies share.
Policies place best-effort vCPUs only, and must not read or write anything.
"""
