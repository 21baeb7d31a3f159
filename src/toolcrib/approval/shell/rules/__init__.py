"""The rules, as data: one row each, grouped by class; `table` holds them all by program."""
