"""The processors as ``/sys`` and ``/proc`` describe them."""
