"""The built-in tools, one family per file, each ending in `registry.register(...)`. Found by discovery."""
