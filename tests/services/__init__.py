# SPDX-License-Identifier: Apache-2.0
"""What amp-nova ships for other OpenStack services, read by those services' own code."""
