"""Tools of other people's MCP servers in, our tools out.

`hub` is what a Runtime holds; one `owner` keeps one server connected; `connection` is the border to the SDK. Only the
modules that need the SDK import it, and they are loaded when the first server is connected: it takes a second.
"""
