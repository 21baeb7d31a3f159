"""Hooks and middleware: where plugins watch, change or stop what the runtime does."""
