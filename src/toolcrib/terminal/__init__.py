"""The `terminal` tool's inside: which environment a call wants, running it there, and telling what happened."""
