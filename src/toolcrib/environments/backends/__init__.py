"""The backends, one Engine per file; loaded by name, so that an unused one costs nothing."""
