"""What agents tell schedulers: the host report, its JSON encoding, and the message-bus topics.

A reader rejects a report it does not understand as a whole. Nothing is decided here.
"""
