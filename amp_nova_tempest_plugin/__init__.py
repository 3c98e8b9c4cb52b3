"""Tempest tests of a cloud with amp-nova, by OpenStack's APIs and Prometheus alone."""
