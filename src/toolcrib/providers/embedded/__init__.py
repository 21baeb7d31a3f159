"""A small language model on this machine, for users without a key: catalog, weights, engine, provider."""
