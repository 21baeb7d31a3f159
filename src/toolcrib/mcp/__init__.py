"""MCP, the Model Context Protocol, in both directions.

`client` connects to MCP servers and registers their tools; `server` offers our tools to MCP clients. Only the modules
that need the SDK import it, and they are loaded when the first connection opens, because it takes a second.
"""
