"""The steps of `toolcrib setup`: each shows what is set, asks, and saves the answer at once."""
