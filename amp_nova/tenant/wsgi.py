# SPDX-License-Identifier: Apache-2.0
"""``amp_nova.tenant.wsgi:application``, configured by ``/etc/amp-nova/amp-nova.conf``."""

from amp_nova.tenant.server import configured

application = configured()[1]
