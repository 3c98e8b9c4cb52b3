"""What the agent tells others: Prometheus metrics, host reports, Placement inventories.

Publishers read the record of the last cycle and never influence the next one.
"""
