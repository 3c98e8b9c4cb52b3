# SPDX-License-Identifier: Apache-2.0
"""What each vCPU is entitled to, and the limit that enforces it.

Every quota, affinity and CPU weight is decided here, and written by ``host/writer``.
"""
