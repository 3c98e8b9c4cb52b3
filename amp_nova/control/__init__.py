"""What each vCPU is entitled to, and the limit that enforces it.

Every quota, affinity and idle flag is decided here. How it is written is ``host/writer``.
"""
