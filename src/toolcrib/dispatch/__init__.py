"""Runs tool calls: one pipeline for every call, parallel batches, and limits for results."""
