"""Real guests and a slowed-down CPU on one machine, for tests and demonstrations.

Nothing here is part of the agent.
"""
