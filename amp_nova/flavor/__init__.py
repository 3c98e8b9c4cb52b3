# SPDX-License-Identifier: Apache-2.0
"""What a tenant books: ``amp:*`` extra specs as a ``Booking``, and its Placement resources.

The package knows the grammar and nothing about hosts: whether a booking fits is ``admission``.
"""
