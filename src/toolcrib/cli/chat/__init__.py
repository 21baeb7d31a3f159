"""The chat at a terminal: one question, or a conversation that lasts."""
