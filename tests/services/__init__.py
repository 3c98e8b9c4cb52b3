"""What amp-nova ships for other OpenStack services, read by those services' own code."""
