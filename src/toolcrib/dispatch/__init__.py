"""Runs tool calls: one pipeline for every call, batches of them, and what bounds their results."""
