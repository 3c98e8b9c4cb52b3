# SPDX-License-Identifier: Apache-2.0
"""What agents tell schedulers: the host report, its JSON encoding, and the message-bus topics.

Nothing is decided here.
"""
