"""What an operator can ask for: status, explain, pause, resume, release.

Requests that change something are files that survive the agent; the control socket is read-only.
"""
