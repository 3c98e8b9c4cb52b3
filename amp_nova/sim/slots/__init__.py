"""Schedulers that decide in time slots, to compare with policies of published hypervisors."""
