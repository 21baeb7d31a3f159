"""A small language model on this machine, for whoever has no key: catalog, weights, engine, provider."""
