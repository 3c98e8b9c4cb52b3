# SPDX-License-Identifier: Apache-2.0
"""Where Nova should place an instance: whether it fits a host, and what the cloud gains there.

Computed from host reports alone. The package knows nothing of Nova; ``nova_plugins`` does.
"""
