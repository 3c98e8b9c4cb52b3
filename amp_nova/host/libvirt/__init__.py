"""Domains as libvirt defines them: connection, events, domain XML, and changes to it."""
