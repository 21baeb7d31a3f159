"""Skills: what an agent can look up when it needs it."""
