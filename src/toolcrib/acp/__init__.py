"""The agent inside editors: the Agent Client Protocol (ACP), wire version 1, over stdio or a WebSocket."""
