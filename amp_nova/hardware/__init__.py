"""What a host is: its core types, their coefficients, and how calibration measures them.

The package works on facts that ``host/sysfs`` has read. It must not know instances or bookings.
"""
