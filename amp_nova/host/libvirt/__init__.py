"""Domains as libvirt defines them: connection, life-cycle events and domain XML."""
