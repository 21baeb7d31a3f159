"""The backends, one Engine a file; loaded by name, so that an unused one costs nothing."""
