"""What a tenant books: ``amp:*`` extra specs, the ``Booking`` they express, Placement resources.

The package knows the grammar and nothing about hosts: ``admission`` decides whether a booking fits.
"""
