"""Speaks texts, and recognises speech: with programs on this machine, or with services."""
