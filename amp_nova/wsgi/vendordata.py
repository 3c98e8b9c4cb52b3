"""``amp_nova.wsgi.vendordata:application``, configured by ``/etc/amp-nova/amp-nova.conf``."""

from amp_nova.vendordata.server import configured

application = configured()[1]
