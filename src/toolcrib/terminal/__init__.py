"""The service behind the `terminal` tool: picks the environment of a call, runs the command, reports the result."""
