"""The commands. Each module holds one click command named `command`; the table in `cli/app.py` knows them by name."""
