"""Domains as libvirt defines them: connection, events and domain XML; and changing them there."""
