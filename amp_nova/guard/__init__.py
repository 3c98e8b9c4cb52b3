# SPDX-License-Identifier: Apache-2.0
"""The guard: keeps a host in its safe state while no agent is in control.

It knows records and the kernel's files, and of the rest of amp-nova only the values in them. It
imports only the standard library, so that no fault of the agent, of libvirt or of an installed
package can stop it as well. The agent uses ``locks``, ``pauses`` and ``record`` too.
"""
