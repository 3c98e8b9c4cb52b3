# SPDX-License-Identifier: Apache-2.0
"""Message-bus names that agents and schedulers share."""

SCHEDULERS = "amp_scheduler"
"""Topic of the scheduler workers: ``report(snapshot)``, cast to all of them, and ``listens()``,
which one of them answers."""
WORKERS = "amp_scheduler_worker"
"""Topic of the scheduler workers among themselves, on Nova's own bus: ``decide(decision)``, cast to
all of them. Not the topic of reports: agents need no access, and reports delay no decision."""
AGENTS = "amp_agent"
"""Topic of the agents: ``publish()``, cast to all of them by a scheduler that starts."""
NAMESPACE = "amp"
RPC_VERSION = "1.0"
EXCHANGE = "nova"
"""Named explicitly, so that both sides agree whatever their configuration says."""
