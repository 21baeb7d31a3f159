"""The chat at a terminal: `one_shot` answers one question, `session` runs an interactive chat."""
