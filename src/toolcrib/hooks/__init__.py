"""Hooks and middleware, with which plugins observe, change or block what the runtime does."""
