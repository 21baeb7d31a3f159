"""Plugins: third-party tools, hooks and commands, loaded only if the operator enables them."""
