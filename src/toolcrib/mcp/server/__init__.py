"""Serves the tools of a runtime to MCP clients."""
