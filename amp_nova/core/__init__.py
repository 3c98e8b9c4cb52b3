"""Pure decision code: plain functions over frozen dataclasses, no I/O, no clock, stdlib only."""
