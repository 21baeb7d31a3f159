"""Offers the tools of a runtime to MCP clients: `app` is the server itself, `stdio` and `http` are its transports."""
