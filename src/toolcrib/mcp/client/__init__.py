"""Connects to MCP servers and registers their tools.

`manager` is what a Runtime holds; a `supervisor` keeps one server connected and reconnects it; `connection` is the
border to the SDK; `tool_registrar` puts the tools into the registry.
"""
