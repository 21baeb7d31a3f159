"""The commands: one module for each group, and one beside it where a command needs expensive imports."""
