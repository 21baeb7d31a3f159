"""Plugins: other people's tools, hooks and commands, loaded only where the operator said so."""
