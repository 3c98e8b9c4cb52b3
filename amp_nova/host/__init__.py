"""This machine: the sensor that reads it and the writer, the only module that changes it.

Errors of libvirt and the kernel are translated here. Nothing is decided here.
"""
