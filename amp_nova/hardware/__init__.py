# SPDX-License-Identifier: Apache-2.0
"""What a host is: its core types, their coefficients, and the arithmetic of calibration.

The package works on facts that ``host/sysfs`` reads. It must not know instances or bookings.
"""
