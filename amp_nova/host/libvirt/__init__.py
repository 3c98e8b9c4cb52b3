"""Domains as libvirt defines them: the connection, life-cycle events, and domain XML."""
