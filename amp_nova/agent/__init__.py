# SPDX-License-Identifier: Apache-2.0
"""The compute-node daemon: the control loop, and the service that runs it.

``state`` keeps what survives a cycle, ``publish`` is what others read, and ``operator`` carries out
the operator's commands.
"""
