"""What Nova loads: extra spec validators, a filter and two weighers."""
