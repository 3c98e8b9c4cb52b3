"""The compute-node daemon: the control loop, the fast loop, and the service that runs them.

``state`` is what survives a cycle, ``publish`` what others read, ``operator`` what they can ask.
"""
