"""The steps of `toolcrib setup`: each shows the current setting, asks, and saves the answer at once."""
