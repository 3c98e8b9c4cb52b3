# SPDX-License-Identifier: Apache-2.0
"""This machine: the sensor that reads it, and the writer that changes what vCPUs may use.

Errors of libvirt and the kernel are translated here. Nothing is decided here.
"""
