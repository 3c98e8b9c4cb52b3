"""Reads what ``/sys`` and ``/proc`` report about the processors."""
