"""The command line: `app` has the table of commands, `commands/` one module for each group."""
