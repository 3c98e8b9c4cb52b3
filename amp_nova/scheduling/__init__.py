"""Which host an instance should go to: whether it fits there, and what the cloud gains.

Everything is computed from host reports. The package must not know Nova; ``nova_plugins`` does.
"""
