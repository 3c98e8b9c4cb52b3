"""A simulated host under the same control loop, to run scenarios and reproduce the papers.

The simulator provides a sensor and an actuator; every decision is made by the agent's code.
"""
