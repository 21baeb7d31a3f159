"""Limits of settings that more than one section needs, as metadata of their fields."""

AT_LEAST_ZERO = {"minimum": 0}
AT_LEAST_ONE = {"minimum": 1}
ABOVE_ZERO = {"above": 0}
NOT_IN_FILE = {"in_file": False}
