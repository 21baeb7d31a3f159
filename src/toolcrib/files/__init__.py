"""Files where the commands run: read, written, patched and searched."""
